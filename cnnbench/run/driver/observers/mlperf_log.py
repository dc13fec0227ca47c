"""MLPerf's compliance log: `:::MLLOG` lines on standard error.

The log has the keys and the format of MLCommons' logging package for training (mllog 1.0 and
later), as its compliance checker requires for resnet and ssd. docs/observability.md lists the
omitted keys.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cnnbench.data.coco import CROP_TRIES
from cnnbench.plan import RunPlan
from cnnbench.plan.length import RunLength
from cnnbench.records.run import Evaluation
from cnnbench.run.driver.context import RunContext
from cnnbench.run.driver.observers.observer import Observer

_POINT, _START, _END = "POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"

_BENCHMARKS = {"resnet50_v1.5": "resnet", "ssd300": "ssd"}
"""MLPerf's names of the networks that were MLPerf benchmarks."""


class MLPerfLog(Observer):
    """Logs a training for MLPerf: its settings, the blocks between evaluations, and its end.

    Args:
      run: the run, whose plan changes when a checkpoint is restored.
      write: writes a line.
      config: the flags in the record. Flags with other values than the defaults are logged.
    """

    def __init__(
        self, run: RunContext, write: Callable[[str], None], config: Mapping[str, Any]
    ) -> None:
        plan = run.plan
        self._run, self._target, model = run, plan.length.target, plan.network.model
        names = (*model.host_metric_names, *model.metric_names)
        # MLPerf's log has only one accuracy; this chooses the metric that is logged.
        if plan.length.target is not None:
            self._accuracy = plan.length.target.metric
        elif model.top_1_accuracy in names:
            self._accuracy = model.top_1_accuracy
        else:
            self._accuracy = (*names, "loss")[0]
        self._write = write
        self._lengths: Iterator[int] = iter(())
        self._block: float | None = None
        self._reached = False
        self._started = self._finished = False
        self._log_event(_START, "init_start", None)
        settings = {
            "submission_benchmark": _BENCHMARKS.get(model.name, model.name),
            "seed": plan.params.tf_random_seed,
            "global_batch_size": plan.length.global_batch,
            "train_samples": plan.length.train_examples,
            "eval_samples": plan.length.eval_examples,
            "gradient_accumulation_steps": plan.params.gradient_accumulation_steps,
            **_norm_and_crop(plan),
            **_optimizer_settings(plan),
            "cnnbench_flags": plan.changed_flags(config),
        }
        for key, value in settings.items():
            self._log_event(_POINT, key, value)

    def training_begins(self, global_step: int, steps: int) -> None:
        """Logs the start of the training, which includes the warm-up."""
        self._log_event(_END, "init_stop", None)
        self._log_event(_START, "run_start", None)
        self._started = True
        last = global_step + self._length.warm_up.least + steps
        evaluations = sorted(s for s in self._length.eval_steps if global_step < s < last)
        edges = [global_step, *evaluations, last]
        self._lengths = iter([end - begin for begin, end in itertools.pairwise(edges)])
        self.training_resumes_after_evaluation(global_step)

    def evaluation_begins(self, global_step: int) -> None:
        """Logs that a block of training steps has ended, and that an evaluation begins."""
        self._log_block_end()
        self._log_event(_START, "eval_start", None, **self._epoch_and_samples(global_step))

    def evaluation_completed(self, evaluation: Evaluation) -> None:
        """Logs the metric of --stop_at or, without this flag, the model's accuracy."""
        position = self._epoch_and_samples(evaluation.global_step)
        value = evaluation.metric_value(self._accuracy)
        if value is not None:
            self._log_event(_POINT, "eval_accuracy", value, **position)
        if self._target is not None and self._target.is_reached_by(value):
            self._reached = True
        self._log_event(_END, "eval_stop", None, **position)

    def training_resumes_after_evaluation(self, global_step: int) -> None:
        """Logs the start of the next block of training, if steps are left."""
        length = next(self._lengths, 0)
        if not length:
            return
        position = self._epoch_and_samples(global_step)
        self._block = position["epoch_num"]
        block = {
            "first_epoch_num": self._block,
            "epoch_count": length * self._length.global_batch / self._length.train_examples,
            "samples_count": position["samples_count"],
        }
        self._log_event(_START, "block_start", None, **block)

    def training_ended(self, global_step: int, steps: int, total: float, mean: float) -> None:
        """Records that the training has ended after its last evaluation, for `close`."""
        self._finished = True

    def close(self) -> None:
        """Logs the end of the run, and whether it reached the target of --stop_at."""
        if self._started:
            self._log_block_end()
            done = self._finished if self._target is None else self._reached
            status = "success" if done else "aborted"
            self._log_event(_END, "run_stop", None, status=status)

    @property
    def _length(self) -> RunLength:
        return self._run.plan.length

    def _epoch_and_samples(self, global_step: int) -> dict[str, float]:
        samples = self._length.examples_after(global_step)
        return {"epoch_num": samples / self._length.train_examples, "samples_count": samples}

    def _log_block_end(self) -> None:
        if self._block is not None:
            self._log_event(_END, "block_stop", None, first_epoch_num=self._block)
            self._block = None

    def _log_event(self, kind: str, key: str, value: Any, **metadata: Any) -> None:
        line = {
            "namespace": "",
            "time_ms": round(time.time() * 1e3),
            "event_type": kind,
            "key": key,
            "value": value,
            "metadata": metadata,
        }
        self._write(f":::MLLOG {json.dumps(line)}")


def _norm_and_crop(plan: RunPlan) -> dict[str, Any]:
    """Returns the values of MLPerf's keys about batch norm and training images."""
    settings: dict[str, Any] = {}
    if plan.network.spec.statistics:
        length, sync = plan.length, plan.params.bn_stats == "sync"
        settings["model_bn_span"] = length.global_batch if sync else length.batch_per_device
    if plan.network.dataset.name == "coco" and plan.params.data_dir is not None:
        settings["max_samples"] = CROP_TRIES
    return settings


def _optimizer_settings(plan: RunPlan) -> dict[str, Any]:
    """Returns the values of MLPerf's keys about the optimizer and its learning rate."""
    rate = plan.rates
    optimizer = plan.numerics.optimizer_spec
    settings: dict[str, Any] = {
        "opt_name": optimizer.mlperf_name or optimizer.name,
        "opt_base_learning_rate": rate.base,
        "opt_learning_rate_warmup_epochs": rate.warmup_epochs,
        "opt_learning_rate_warmup_steps": rate.warmup_steps,
        "opt_learning_rate_warmup_factor": 0.0,
        "opt_weight_decay": plan.params.weight_decay,
    }
    if rate.boundaries_epochs:
        settings["opt_learning_rate_decay_boundary_epochs"] = rate.boundaries_epochs
    values = {
        **optimizer.values(plan.params),
        "base_rate": rate.base,
        "end_rate": plan.rates.schedule(plan.length.training_steps),
        "warmup_epochs": rate.warmup_epochs,
        "weight_decay": plan.params.weight_decay,
    }
    for key, value in optimizer.mlperf.items():
        settings[key] = values[value] if isinstance(value, str) else value
    return settings
