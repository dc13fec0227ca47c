"""One run whose warm-up is profiled, from its parameters to its roofline."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from statistics import fmean
from typing import TYPE_CHECKING, Any

from cnnbench.base.text.progress import Messages, Progress
from cnnbench.errors import BenchmarkError
from cnnbench.flags import Params
from cnnbench.lab.roofline.rows import Machine, Roofline, faster_half, rows_of
from cnnbench.lab.roofline.work import Works
from cnnbench.models.declare import Flops, scope_flops
from cnnbench.run.driver.benchmark_cnn import BenchmarkCNN
from cnnbench.run.driver.plan import COMPUTE_DTYPES, Plan
from cnnbench.run.runtime import copy_rate, peak_flops

if TYPE_CHECKING:
    from cnnbench.records.run import RunRecord
    from cnnbench.run.driver.probes import Probe
    from cnnbench.run.observe.xplane import Plane


class RooflineRun:
    """Profiles steps of a run.

    Args:
      params: of the run; as many of its last warm-up steps as it has timed steps are profiled.
      command, explicit_flags, messages, progress: see `BenchmarkCNN`.

    Raises:
      FlagError: a parameter that cannot be used.
    """

    def __init__(
        self,
        params: Params,
        *,
        command: Iterable[str] = (),
        explicit_flags: Iterable[str] = (),
        messages: Messages | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.benchmark = BenchmarkCNN(
            params,
            command=tuple(command),
            explicit_flags=tuple(explicit_flags),
            messages=messages,
            progress=progress,
            looks=self._looks,
        )
        self._graph: Any = None
        self._partitions: list[Any] = []
        self._steps: list[dict[tuple[str, str], float]] = []

    def run(self) -> Roofline:
        """Runs, profiles and measures what the machine can do.

        Raises:
          UsageError: found only now, such as too few GPUs.
          BenchmarkError: the run failed, or the peak of a GPU is not known.
        """
        record = self.benchmark.run()
        plan = self.benchmark.plan
        scopes = _flops(plan)
        kernels = {
            one.name.rpartition("/")[0]: one.shape
            for one in plan.spec.variables
            if one.trainable and len(one.shape) in (2, 4)
        }
        works = Works(self._graph, self._partitions, scopes, kernels)
        machine = self._machine(record)
        profiled = record.warmup_step_seconds[-len(self._steps) :]
        kept, plain = faster_half(profiled), faster_half(record.step_seconds)
        return Roofline(
            rows_of([self._steps[step] for step in kept], works, scopes, machine),
            machine,
            fmean(profiled[step] for step in kept),
            fmean(record.step_seconds[step] for step in plain),
        )

    def _looks(self, plan: Plan, graph: Any) -> Iterable[Probe]:
        from cnnbench.run.driver.probes import Probe
        from cnnbench.run.observe.graphs import collecting_partitions

        self._graph = graph
        # The runtime divides a graph among the devices when it runs for the first time.
        yield Probe(1, collecting_partitions(self._partitions))
        for step in range(plan.num_batches):
            yield Probe(plan.warmup - step, self._profiled())

    def _profiled(self) -> AbstractContextManager[None]:
        from cnnbench.run.observe.operations import wall_seconds
        from cnnbench.run.observe.profile import profiling

        def use(planes: tuple[Plane, ...]) -> None:
            self._steps.append(wall_seconds(planes))

        return profiling(None, use)

    def _machine(self, record: RunRecord) -> Machine:
        params, placement = self.benchmark.params, record.placement
        assert placement is not None
        dtype = COMPUTE_DTYPES[params.precision]
        devices = placement.devices
        peak = peak_flops.peak(placement.device, devices, dtype, params.peak_flops)
        if peak is None:
            raise BenchmarkError(
                f"the peak of this GPU in {dtype} is not known; give it by --peak_flops"
            )
        copied = copy_rate.measured(placement.device, devices[0])
        parts = len(devices) if placement.device == "gpu" else 1
        rate = parts * copied.bytes_per_sec
        return Machine(peak.flops_per_sec, rate, peak.source, copied.source)


def with_profiled_steps(params: Params, steps: int, warm_up: int) -> Params:
    """The parameters of a run that warms up, profiles steps and times as many.

    Args:
      params: as given.
      steps: to profile, and to time.
      warm_up: steps before them where --num_warmup_batches is not given.
    """
    before = warm_up if params.num_warmup_batches is None else params.num_warmup_batches
    return dataclasses.replace(params, num_batches=steps, num_warmup_batches=before + steps)


def _flops(plan: Plan) -> Mapping[str, Flops]:
    """FLOPs of all devices in a step, by layer."""
    found = scope_flops(plan.model, plan.spec.num_classes, training=plan.trains)
    images = plan.global_batch
    return {name: Flops(*(images * part for part in one)) for name, one in found.items()}
