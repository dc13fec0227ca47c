"""MLPerf's compliance log: `:::MLLOG` lines on standard error.

Keys and form are those of MLCommons' logging package for training (mllog 1.0 and later), as its
compliance checker asks for them of resnet and ssd; docs/observability.md lists what is left out.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from cnnbench.data.coco import CROP_TRIES
from cnnbench.plan.run_plan import RunPlan
from cnnbench.records.parts import Evaluation
from cnnbench.run.driver.observer import Observer

_POINT, _START, _END = "POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"

_BENCHMARKS = {"resnet50_v1.5": "resnet", "ssd300": "ssd"}
"""MLPerf's names of the networks that were its benchmarks."""


class MLPerfLog(Observer):
    """Logs a training: its set-up, blocks of training between evaluations, and its end."""

    def __init__(self, plan: RunPlan, write: Callable[[str], None]) -> None:
        self._plan, self._target, model = plan, plan.length.target, plan.network.model
        names = (*model.host_metric_names, *model.metric_names)
        # The metric that is logged as accuracy.
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
        self._log(_START, "init_start", None)
        settings = {
            "submission_benchmark": _BENCHMARKS.get(
                plan.network.model.name, plan.network.model.name
            ),
            "seed": plan.numerics.tf_random_seed,
            "global_batch_size": plan.length.global_batch,
            "train_samples": plan.length.train_examples,
            "eval_samples": plan.length.eval_examples,
            "gradient_accumulation_steps": 1,
            **_network(plan),
            **_optimizer(plan),
        }
        for key, value in settings.items():
            self._log(_POINT, key, value)

    def begins(self, global_step: int, steps: int) -> None:
        """Logs the start of the training, with the warm-up."""
        self._log(_END, "init_stop", None)
        self._log(_START, "run_start", None)
        self._started = True
        last = global_step + self._plan.length.warm_up.least + steps
        evaluations = sorted(
            step for step in self._plan.length.eval_steps if global_step < step < last
        )
        edges = [global_step, *evaluations, last]
        self._lengths = iter([end - begin for begin, end in itertools.pairwise(edges)])
        self.resuming(global_step)

    def evaluating(self, global_step: int) -> None:
        """Logs the end of a block of training."""
        self._end_block()
        self._log(_START, "eval_start", None, **self._position(global_step))

    def evaluated(self, evaluation: Evaluation) -> None:
        """Logs the target's metric, or else the model's accuracy."""
        position = self._position(evaluation.global_step)
        value = evaluation.value_of(self._accuracy)
        if value is not None:
            self._log(_POINT, "eval_accuracy", value, **position)
        if self._target is not None and self._target.reached(value):
            self._reached = True
        self._log(_END, "eval_stop", None, **position)

    def resuming(self, global_step: int) -> None:
        """Logs the next block of training, if steps are left."""
        length = next(self._lengths, 0)
        if not length:
            return
        self._block = self._epochs(global_step)
        self._log(
            *(_START, "block_start", None),
            first_epoch_num=self._block,
            epoch_count=self._epochs(length),
            samples_count=global_step * self._plan.length.global_batch,
        )

    def ended(self, global_step: int, steps: int, images_per_sec: float) -> None:
        """Logs the end of the training, after its last evaluation."""
        self._finished = True

    def close(self) -> None:
        """Logs the end of the run, and whether it reached its target."""
        if self._started:
            self._end_block()
            done = self._finished if self._target is None else self._reached
            status = "success" if done else "aborted"
            self._log(_END, "run_stop", None, status=status)

    def _epochs(self, steps: int) -> float:
        return steps * self._plan.length.global_batch / self._plan.length.train_examples

    def _position(self, global_step: int) -> dict[str, float]:
        samples = global_step * self._plan.length.global_batch
        return {"epoch_num": self._epochs(global_step), "samples_count": samples}

    def _end_block(self) -> None:
        if self._block is not None:
            self._log(_END, "block_stop", None, first_epoch_num=self._block)
            self._block = None

    def _log(self, kind: str, key: str, value: Any, **metadata: Any) -> None:
        line = {
            "namespace": "",
            "time_ms": round(time.time() * 1e3),
            "event_type": kind,
            "key": key,
            "value": value,
            "metadata": metadata,
        }
        self._write(f":::MLLOG {json.dumps(line)}")


def _network(plan: RunPlan) -> dict[str, Any]:
    """Settings of batch norm and of the training images."""
    settings: dict[str, Any] = {}
    if plan.network.spec.statistics:
        sync = plan.numerics.bn_stats == "sync"
        settings["model_bn_span"] = (
            plan.length.global_batch if sync else plan.length.batch_per_device
        )
    if plan.network.dataset.name == "coco" and plan.input.data_dir is not None:
        settings["max_samples"] = CROP_TRIES
    return settings


def _optimizer(plan: RunPlan) -> dict[str, Any]:
    """Settings of the optimizer, as it declares them, and of its learning rate."""
    rate = plan.rates.outline
    optimizer = plan.numerics.optimizer
    settings: dict[str, Any] = {
        "opt_name": optimizer.mlperf_name or optimizer.name,
        "opt_base_learning_rate": rate.base,
        "opt_learning_rate_warmup_epochs": rate.warmup_epochs,
        "opt_learning_rate_warmup_steps": rate.warmup_steps,
        "opt_learning_rate_warmup_factor": 0.0,
        "opt_weight_decay": plan.numerics.weight_decay,
    }
    if rate.boundaries_epochs:
        settings["opt_learning_rate_decay_boundary_epochs"] = rate.boundaries_epochs
    named = {
        **plan.numerics.constants,
        "base_rate": rate.base,
        "end_rate": plan.rates.schedule(plan.length.training_steps),
        "warmup_epochs": rate.warmup_epochs,
        "weight_decay": plan.numerics.weight_decay,
    }
    own = optimizer.mlperf.items()
    return settings | {key: named[of] if isinstance(of, str) else of for key, of in own}
