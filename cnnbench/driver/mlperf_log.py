"""MLPerf's compliance log: `:::MLLOG` lines on standard error.

Keys and form are those of MLCommons' logging package for training (mllog 1.0 and later).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from cnnbench.driver.observer import Observer
from cnnbench.driver.plan import Plan
from cnnbench.flags import Params
from cnnbench.records.run import Evaluation

_POINT, _START, _END = "POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"


class MLPerfLog(Observer):
    """Logs a training: its set-up, blocks of training between evaluations, and its end.

    Args:
      params, plan: of the run.
      learning_rate: that of the first step after a warm-up of the rate.
      write: takes a line.
      clock: seconds since 1970.
    """

    def __init__(
        self,
        params: Params,
        plan: Plan,
        learning_rate: float,
        write: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._target = params.stop_at_top_1_accuracy
        self._images, self._epoch = plan.global_batch, plan.train_examples
        self._write = write
        self._clock = clock
        self._block: float | None = None
        self._reached = self._target is None
        self._started = self._finished = False
        self._log(_START, "init_start", None)
        eval_batch = plan.eval_batch_per_device * plan.job.num_towers
        for key, value in (
            ("submission_benchmark", plan.model.name),
            ("seed", params.tf_random_seed),
            ("global_batch_size", plan.global_batch),
            ("train_samples", plan.train_examples),
            ("eval_samples", plan.num_eval_batches * eval_batch),
            ("gradient_accumulation_steps", 1),
            ("opt_name", params.optimizer),
            ("opt_base_learning_rate", learning_rate),
            ("opt_learning_rate_warmup_epochs", params.num_learning_rate_warmup_epochs),
            ("opt_weight_decay", params.weight_decay),
        ):
            self._log(_POINT, key, value)

    def begins(self, global_step: int) -> None:
        """Training begins, with the warm-up."""
        self._log(_END, "init_stop", None)
        self._log(_START, "run_start", None)
        self._started = True
        self.resuming(global_step)

    def evaluating(self, global_step: int) -> None:
        """Training pauses."""
        self._end_block()
        self._log(_START, "eval_start", None, epoch_num=self._epochs(global_step))

    def evaluated(self, evaluation: Evaluation) -> None:
        """The accuracy, and the next block, if there is one."""
        epoch = self._epochs(evaluation.global_step)
        if evaluation.top_1 is not None:
            self._log(_POINT, "eval_accuracy", evaluation.top_1, epoch_num=epoch)
            if self._target is not None and evaluation.top_1 >= self._target:
                self._reached = True
        self._log(_END, "eval_stop", None, epoch_num=epoch)

    def resuming(self, global_step: int) -> None:
        """Training goes on after an evaluation."""
        self._block = self._epochs(global_step)
        self._log(_START, "block_start", None, first_epoch_num=self._block)

    def ended(self, global_step: int, images_per_sec: float) -> None:
        """Training is over, its last evaluation too."""
        self._finished = True

    def close(self) -> None:
        """The end of the run, and whether it has reached its target."""
        if self._started:
            self._end_block()
            status = "success" if self._finished and self._reached else "aborted"
            self._log(_END, "run_stop", None, status=status)

    def _epochs(self, global_step: int) -> float:
        return global_step * self._images / self._epoch

    def _end_block(self) -> None:
        if self._block is not None:
            self._log(_END, "block_stop", None, first_epoch_num=self._block)
            self._block = None

    def _log(self, kind: str, key: str, value: Any, **metadata: Any) -> None:
        line = {
            "namespace": "",
            "time_ms": round(self._clock() * 1e3),
            "event_type": kind,
            "key": key,
            "value": value,
            "metadata": metadata,
        }
        self._write(f":::MLLOG {json.dumps(line)}")
