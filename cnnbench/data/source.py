"""Interface of inputs to the driver: one batch per tower and step."""

from __future__ import annotations

import abc
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from cnnbench.data.spec import InputSpec
from cnnbench.models.elements import Element, grouped
from cnnbench.records.parts import SkippedRecords

CLOSE_SECONDS = 2.0


def close_all(sources: Iterable[InputSource], seconds: float) -> None:
    """Closes inputs, for so many seconds in all."""
    end = time.monotonic() + seconds
    for source in sources:
        source.close(max(0.0, end - time.monotonic()))


class TowerBatch(NamedTuple):
    """One tower's share of a step, on the tower's device; can be an argument of a ``tf.function``.

    Attributes:
      features: the only feature among the elements, or several by name. Images are [batch,
        height, width, channels], dtype of the spec, about N(0, 1/2) in [-1, 1] (with ml_perf:
        0..255 minus the channel means).
      labels: the only label, or several by name; classes are int64 [batch].
      weights: float32 [batch], 1 for an example and 0 for padding; None while training.
    """

    features: Any
    labels: Any
    weights: Any = None

    @classmethod
    def of(
        cls, elements: Sequence[Element], values: Mapping[str, Any], weights: Any = None
    ) -> TowerBatch:
        """The batch with these values by name of element."""
        features = grouped(elements, "feature", values)
        return cls(features, grouped(elements, "label", values), weights)


class InputSource(AbstractContextManager["InputSource"]):
    """Delivers a batch per tower and step, synthetic or read from files.

    `examples_per_epoch` counts all shards; `wait_seconds` is the total time blocked in `next`.
    """

    synthetic: bool = False

    def __init__(self, spec: InputSpec, devices: Sequence[str], examples_per_epoch: int) -> None:
        self.spec = spec
        self.devices = tuple(devices)
        self.examples_per_epoch = examples_per_epoch
        self.wait_seconds = 0.0
        self.batches = 0

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one exact pass over this process's shard, the last one padded."""
        per_shard = -(-self.examples_per_epoch // self.spec.num_shards)
        return -(-per_shard // self.spec.global_batch)

    @property
    def element_spec(self) -> tuple[TowerBatch, ...]:
        """Per tower a TowerBatch of ``tf.TensorSpec``, the structure that `next` returns."""
        import tensorflow as tf

        spec = self.spec
        batch = spec.batch_per_device
        values = {
            one.name: tf.TensorSpec([batch, *one.sizes], tf.as_dtype(spec.dtype_of(one)))
            for one in spec.elements
        }
        weights = None if spec.training else tf.TensorSpec([batch], tf.float32)
        return (TowerBatch.of(spec.elements, values, weights),) * spec.num_devices

    @property
    def signature(self) -> tuple[TowerBatch, ...]:
        """Argument specs of a step traced for this input."""
        return self.element_spec

    def of_tower(self, tower: int, batches: Sequence[TowerBatch]) -> TowerBatch:
        """The batch of one tower; call it inside the traced step, under the tower's device."""
        return batches[tower]

    @abc.abstractmethod
    def next(self) -> tuple[TowerBatch, ...]:
        """The next step's batches, in tower order; DataError names file and record."""

    def waiting(self) -> dict[int, float]:
        """Seconds for which callers have been blocked in `next`, by number of the shard."""
        return {}

    def stages(self) -> list[Any]:
        """The `cnnbench.data.pipeline.PipelineStage`s of the input; none for synthetic data."""
        return []

    def skipped(self) -> SkippedRecords:
        """Records skipped so far; see `Pipeline.skipped`."""
        return SkippedRecords()

    def passed_over(self, steps: int) -> list[int]:
        """Records that each shard read here skipped in a number of training steps.

        Those of earlier runs (`resume`) are included.
        """
        del steps
        return []

    def resume(self, steps: int, passed_over: Sequence[int] = ()) -> bool:
        """Continues after this many steps of an earlier run; to be called before the first `next`.

        `passed_over` counts the records skipped by then, per shard, and is ignored if the number of
        shards differs. Returns whether it continues; otherwise `next` begins with the very first
        batch.
        """
        return True

    def restart(self) -> None:
        """Starts a new exact pass; synthetic data has none."""

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Stops reading and frees the buffers; `next` or `restart` starts again.

        Waits so many seconds at most for the end of the batches that are being read.
        """

    def __exit__(self, *error: object) -> None:
        self.close()
