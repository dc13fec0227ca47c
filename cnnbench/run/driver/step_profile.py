"""Profiles the last warm-up steps, and divides their time among layers, and forward and backward
pass.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cnnbench.models.declaration import FlopCounts
from cnnbench.plan import RunPlan
from cnnbench.records.profiles import (
    GAPS,
    INPUT_OPERATIONS,
    INPUT_WAIT,
    PROGRAM,
    ProfiledLayer,
    ProfiledPart,
    ProfiledSpan,
    StepPartKey,
    StepProfile,
)
from cnnbench.run.observe.operations import (
    PICOSECONDS,
    ExecutedOperation,
    WallTimes,
    XPlane,
    count_allocations,
    divide_wall_time_of_step,
    sorted_operations,
)
from cnnbench.run.observe.work import (
    OperationWork,
    OperationWorkFinder,
    flops_by_part,
    make_work_finder,
)

if TYPE_CHECKING:
    from cnnbench.records.run import RunRecord
    from cnnbench.run.driver.observers.profiles import Probe


_SHORTEST = 1 / 2000
"""Shortest span in a timeline, and shortest gap between two spans, as a share of the step."""


class StepProfiler:
    """Profiles the last steps of a run's warm-up.

    Attributes:
      steps: time of each profiled step, divided among operations.
      input_wait_seconds: seconds for which each profiled step waited for its input.
      allocated: number of allocations in the last profiled step, and bytes; None if unknown.
      last: operations of the last profiled step.

    Args:
      most: maximum number of steps. The first step of the warm-up is never profiled.
      waited: returns the seconds for which the run has waited for input so far.
    """

    def __init__(self, plan: RunPlan, most: int, waited: Callable[[], float]) -> None:
        self._plan = plan
        self._count = min(most, max(1, plan.length.warm_up.least - 1))
        self._waited = waited
        self._graph: Any = None
        self._partitions: list[Any] = []
        self.steps: list[WallTimes] = []
        self.input_wait_seconds: list[float] = []
        self.allocated: tuple[int, int] | None = None
        self.last: list[ExecutedOperation] = []

    def probes(self, graph: Any) -> Iterator[Probe]:
        """Creates the profilers of the run's last warm-up steps. `graph` is the traced step."""
        from cnnbench.run.observe.graphs import collecting_partitions

        self._graph, last = graph, self._plan.length.warm_up.least
        for step in range(last - self._count + 1, last + 1):
            yield step, self._profile(step)
        # TensorFlow partitions a graph when it runs for the first time, which is the first step.
        # This context is yielded last: it is entered last and left first, so the partitions are
        # known when the profile is read.
        yield 1, collecting_partitions(self._partitions)

    @contextmanager
    def _profile(self, step: int) -> Iterator[None]:
        from cnnbench.run.driver.observers.profiles import profiling_step

        def add_profile(planes: tuple[XPlane, ...]) -> None:
            self.last = sorted_operations(planes, self.work_finder.is_of_step)
            self.steps.append(divide_wall_time_of_step(self.last))
            self.allocated = count_allocations(planes)

        before = self._waited()
        with profiling_step(step, None, add_profile):
            yield
            self.input_wait_seconds.append(self._waited() - before)

    @cached_property
    def work_finder(self) -> OperationWorkFinder:
        """Layers, FLOPs and bytes of the step's operations. Available after the first step."""
        return make_work_finder(self._plan, self._graph, self._partitions)

    @cached_property
    def flops(self) -> Mapping[str, FlopCounts]:
        """FLOPs of a step on all devices, by layer."""
        images = self._plan.length.global_batch
        return {
            name: FlopCounts(*(images * part for part in of_image))
            for name, of_image in self.work_finder.image_flops.items()
        }

    def profile(self, record: RunRecord) -> StepProfile:
        """Creates the profile of a run that has ended, with the record of the run."""
        seconds = record.warmup_step_seconds[: self._plan.length.warm_up.least][-len(self.steps) :]
        works = {op: self.work_finder(*op) for step in self.steps for op in step.counts}
        allocations, allocated_bytes = self.allocated or (None, None)
        rows = profile_rows(
            self.steps, seconds, self.input_wait_seconds, works, self.flops, self.work_finder
        )
        return StepProfile(
            step_seconds=seconds,
            input_wait_seconds=tuple(self.input_wait_seconds),
            rows=tuple(rows),
            graph=self.work_finder.count_operations(),
            record=record,
            layers=tuple(self._profiled_layers(works.values())),
            allocations=allocations,
            allocated_bytes=allocated_bytes,
            timeline=tuple(timeline_spans(self.last, self.work_finder)),
        )

    def _profiled_layers(self, works: Iterable[OperationWork]) -> Iterable[ProfiledLayer]:
        """Yields the layers with trainable variables, in the order of their creation."""
        kinds = {work.part.layer: work.part.kind for work in works if work.is_product}
        shapes: defaultdict[str, list[tuple[int, ...]]] = defaultdict(list)
        for variable in self._plan.network.spec.variables:
            if variable.trainable:
                shapes[variable.name.rpartition("/")[0]].append(variable.shape)
        for name, layer_shapes in shapes.items():
            yield ProfiledLayer(
                name=name,
                kind=kinds.get(name, ""),
                shapes=tuple(layer_shapes),
                parameters=sum(map(math.prod, layer_shapes)),
                flops=self.flops.get(name, FlopCounts()).forward,
            )


def profile_rows(
    steps: Sequence[WallTimes],
    step_seconds: Sequence[float],
    input_wait_seconds: Sequence[float],
    work_by_operation: Mapping[tuple[str, str], OperationWork],
    flops: Mapping[str, FlopCounts],
    work_finder: OperationWorkFinder,
) -> Iterable[ProfiledPart]:
    """Adds up the times of operations by layer and pass. The rows add up to the step times.

    Args:
      steps: time of each profiled step, divided among operations.
      step_seconds: wall time of each step.
      input_wait_seconds: seconds for which each step waited for its input.
      work_by_operation: layer, pass (forward or gradient), and bytes of every operation, by name
        and type.
      flops: FLOPs of a step on all devices, by layer.
      work_finder: returns the type of an operation's result.
    """
    seconds: defaultdict[StepPartKey, list[float]] = defaultdict(lambda: [0.0] * len(steps))
    moved: Counter[StepPartKey] = Counter()
    operations: defaultdict[StepPartKey, Counter[str]] = defaultdict(Counter)
    for (name, kernel), work in work_by_operation.items():
        # An operation in a branch of tf.cond does not run in every step, so its bytes are
        # multiplied by the share of steps in which it ran.
        share = sum((name, kernel) in step.counts for step in steps) / len(steps)
        moved[work.part] += round(share * work.bytes)
        if times := steps[-1].counts[name, kernel]:
            operations[work.part][f"{kernel} {work_finder.result_dtype(name)}".rstrip()] += times
    for number, step in enumerate(steps):
        for operation, spent in step.seconds.items():
            seconds[work_by_operation[operation].part][number] += spent
        outside = step_seconds[number] - sum(step.seconds.values())
        outside -= step.other_seconds + step.idle_seconds
        wait = min(max(0.0, outside), input_wait_seconds[number])
        seconds[INPUT_OPERATIONS][number] = step.other_seconds
        seconds[INPUT_WAIT][number] = wait
        seconds[GAPS][number] = step.idle_seconds
        seconds[PROGRAM][number] = outside - wait
    counted = flops_by_part(work_by_operation.values(), flops)
    for part, values in seconds.items():
        yield ProfiledPart(
            **part._asdict(),
            seconds=tuple(values),
            flops=counted.get(part, 0),
            bytes=moved[part],
            operations=dict(sorted(operations[part].items())),
        )


def timeline_spans(
    operations: Sequence[ExecutedOperation], work_finder: OperationWorkFinder
) -> list[ProfiledSpan]:
    """Joins neighbouring operations of a step into the spans of a timeline.

    `operations` contains the operations in the order of their starts.
    """
    shortest = _SHORTEST * PICOSECONDS * max((operation.end for operation in operations), default=0)
    spans: list[ProfiledSpan] = []
    latest: dict[tuple[str, StepPartKey], int] = {}
    for operation in operations:
        start, end = operation.start * PICOSECONDS, operation.end * PICOSECONDS
        part, device = INPUT_OPERATIONS, ""
        if operation.is_of_step:
            part = work_finder(operation.name, operation.type).part
            # For an operation that is not in the graph, the name of its plane in the profile
            # contains the device.
            _, found, gpu = operation.plane.rpartition("device:")
            plane = gpu.lower() if found else "cpu:0"
            device = work_finder.device_of_operation(operation.name) or plane
        place = latest.get((device, part))
        if place is not None and start - spans[place].end <= shortest:
            spans[place] = replace(spans[place], end=max(spans[place].end, end))
            continue
        latest[device, part] = len(spans)
        spans.append(ProfiledSpan(device=device, **part._asdict(), start=start, end=end))
    return [span for span in spans if span.end - span.start >= shortest]
