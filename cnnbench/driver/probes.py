"""What looks at single steps of the warm-up, so that no timed step is looked at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

from cnnbench.flags import Params
from cnnbench.observe.graphs import writing_partitions
from cnnbench.text.progress import Messages


class Probe(NamedTuple):
    """A look at one step.

    Attributes:
      step: its number in the warm-up, from 1.
      look: entered before the step and left after it, outside of any step's time.
    """

    step: int
    look: AbstractContextManager[None]


def make_probes(params: Params, messages: Messages) -> tuple[Probe, ...]:
    """The looks that the parameters ask for.

    Args:
      params: validated.
      messages: are told what was written.
    """
    probes = []
    if params.partitioned_graph_file_prefix:
        # The runtime divides a graph among the devices when it runs for the first time.
        probes.append(Probe(1, _partitions(params.partitioned_graph_file_prefix, messages)))
    return tuple(probes)


@contextmanager
def _partitions(prefix: str, messages: Messages) -> Iterator[None]:
    written: list[str] = []
    with writing_partitions("partitioned_graph_file_prefix", prefix, written):
        yield
    for line in written:
        messages.notice(line)
