"""What looks at single steps of the warm-up, so that no timed step is looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

from cnnbench.base.text.progress import Messages
from cnnbench.flags import Params
from cnnbench.models.declare import scope_flops
from cnnbench.records.files import write_bytes, write_text
from cnnbench.run.driver.plan import Plan
from cnnbench.run.observe import layers
from cnnbench.run.observe.chrome_trace import chrome_trace, encoded
from cnnbench.run.observe.graphs import writing_partitions
from cnnbench.run.observe.operations import operations, table
from cnnbench.run.observe.profile import profiling
from cnnbench.run.observe.xplane import Plane
from cnnbench.version import __version__


class Probe(NamedTuple):
    """A look at one step.

    Attributes:
      step: its number in the warm-up, from 1.
      look: entered before the step and left after it, outside of any step's time.
    """

    step: int
    look: AbstractContextManager[None]


Looks = Callable[[Plan, Any], Iterable[Probe]]
"""Probes of a run, given its plan and the graph of the step as traced."""


def make_probes(
    params: Params, plan: Plan, graph: Any, messages: Messages, looks: Looks | None = None
) -> tuple[Probe, ...]:
    """The looks that the parameters ask for.

    Args:
      params, plan: of the run.
      graph: of the step, as traced.
      messages: are told what was written.
      looks: more of them.
    """
    probes = [] if looks is None else [*looks(plan, graph)]
    if params.partitioned_graph_file_prefix:
        # The runtime divides a graph among the devices when it runs for the first time.
        probes.append(Probe(1, _partitions(params.partitioned_graph_file_prefix, messages)))
    if params.trace_file or params.tfprof_file or params.profile_layers:
        # As tf_cnn_benchmarks: one more step lies between the profiled one and the timed ones.
        step = max(1, plan.warmup - 1)
        folder = None if params.use_chrome_trace_format else params.trace_file or None
        probes.append(Probe(step, profiling(folder, _Report(params, plan, graph, step))))
    return tuple(probes)


class _Report:
    """Writes what a profile shows."""

    def __init__(self, params: Params, plan: Plan, graph: Any, step: int) -> None:
        self._params = params
        self._plan = plan
        self._graph = graph
        self._title = (
            f"warm-up step {step} of {plan.model.name}, {plan.batch_per_device} images per device"
        )

    def __call__(self, planes: Sequence[Plane]) -> None:
        """Writes the files that were asked for.

        Raises:
          BenchmarkError: one of them cannot be written.
        """
        params = self._params
        if params.trace_file and params.use_chrome_trace_format:
            trace = chrome_trace(planes, {"step": self._title, "cnnbench": __version__})
            write_bytes("trace_file", params.trace_file, encoded(trace, params.trace_file))
        made = operations(planes)
        if params.tfprof_file:
            title = f"operations of {self._title}"
            write_text("tfprof_file", params.tfprof_file, table(made, title))
        if params.profile_layers:
            found = layers.layers_of(made, self._graph, self._flops(), params.num_gpus)
            for path in params.profile_layers.split(","):
                layers.write("profile_layers", path, found, f"layers of {self._title}")

    def _flops(self) -> dict[str, int]:
        """FLOPs of the batch of one device, by layer."""
        plan = self._plan
        flops = scope_flops(plan.model, plan.spec.num_classes, training=plan.trains)
        return {name: plan.batch_per_device * one.training for name, one in flops.items()}


@contextmanager
def _partitions(prefix: str, messages: Messages) -> Iterator[None]:
    written: list[str] = []
    with writing_partitions("partitioned_graph_file_prefix", prefix, written):
        yield
    for line in written:
        messages.notice(line)
