"""The kinds of measurements that are compared, and in what they differ: one table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cnnbench.compare import reductions, runs
from cnnbench.metrics.measurement import ALLREDUCE, BUILD, COPY, PEER, RUN, Reduction
from cnnbench.metrics.registry import Metric, judged


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What there is to know of measurements of one kind. They never meet those of another.

    Attributes:
      name: as in `Measurement.kind`.
      noun: of several, for sentences.
      metrics: what is judged, by the names of --metrics.
      label: a configuration's flags in a few words, in parts.
      defaults: of all its flags.
      variants: flags that configurations must share to be variants of each other.
      facts: of a measurement, as text; flags are none.
      resolved: whether the flags of a measurement are as they turned out.
      unresolved: flags that are not, where it ended before.
      astray: how many of some measurements one should not rely on for what they computed.
      pair: of a measurement, the experiment and the number of the pair in it that it is one
        half of; None if it is of none.
      decides: whether it counts for the exit code; others are context, such as a machine's
        speed.
    """

    name: str
    noun: str
    metrics: Mapping[str, Metric]
    label: Callable[[Mapping[str, Any]], list[str]]
    defaults: Callable[[], Mapping[str, Any]]
    variants: tuple[str, ...]
    facts: Callable[[Any], Iterable[tuple[str, str]]]
    resolved: Callable[[Any], bool] = lambda measurement: True
    unresolved: tuple[str, ...] = ()
    astray: Callable[[Sequence[Any]], int] = lambda measurements: 0
    pair: Callable[[Any], tuple[int, int] | None] = lambda measurement: None
    decides: bool = True


def _facts_of(row: Reduction) -> Iterable[tuple[str, str]]:
    return row.facts


def _reductions(
    name: str,
    noun: str,
    label: Callable[[Mapping[str, Any]], list[str]],
    decides: bool = True,
) -> Kind:
    return Kind(
        name=name,
        noun=noun,
        metrics=judged(name),
        label=label,
        defaults=reductions.defaults,
        variants=reductions.OWN,
        facts=_facts_of,
        decides=decides,
    )


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            name=RUN,
            noun="runs",
            metrics=judged(RUN),
            label=runs.label,
            defaults=runs.defaults,
            variants=("model", "data_name", "eval", "forward_only"),
            facts=runs.facts,
            resolved=runs.resolved,
            unresolved=runs.UNRESOLVED,
            astray=runs.astray,
            pair=runs.pair,
        ),
        _reductions(
            ALLREDUCE,
            "all-reduces",
            reductions.label,
        ),
        _reductions(
            BUILD,
            "all-reduces that were only built",
            reductions.build_label,
        ),
        # Others' reductions and the machine's memory tell what else changed; it is not ours.
        _reductions(
            PEER,
            "peers",
            reductions.peer_label,
            decides=False,
        ),
        _reductions(
            COPY,
            "memory copies",
            reductions.copy_label,
            decides=False,
        ),
    )
}
"""By name, in the order they are shown."""
