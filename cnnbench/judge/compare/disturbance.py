"""Disturbances of the runs of a comparison, from their records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from cnnbench.base.stats.descriptive import median
from cnnbench.base.text.numbers import count, percent
from cnnbench.judge.metrics.measurement import Measurement
from cnnbench.machine.checks import CONDITIONS
from cnnbench.records.parts import Conditions
from cnnbench.records.run import RunRecord

_BUSY = 0.05
"""Fewest CPUs in use by others that are mentioned."""

_BY_OTHERS = frozenset(("load", "steal"))


def disturbance(measurements: Iterable[Measurement]) -> str:
    """The number of disturbed runs and the causes, in words; "" without conditions."""
    runs = [one for one in measurements if isinstance(one, RunRecord)]
    checked = [one.conditions for one in runs if one.conditions is not None]
    if not checked:
        return ""
    found: dict[str, list[Conditions]] = {}
    for one in checked:
        for name in dict.fromkeys(note.id for note in one.notes if note.when == "during"):
            found.setdefault(name, []).append(one)
    if not found:
        most = _amount("load", checked) or "as far as they could be checked"
        return f"none of {count(len(checked), 'run', 'runs')} was disturbed ({most})"
    disturbed = sum(any(note.when == "during" for note in one.notes) for one in checked)
    verb = "was" if disturbed == 1 else "were"
    causes = [
        f"{CONDITIONS.get(name, name)} in {len(those)}"
        + (f" ({amount})" if (amount := _amount(name, those)) else "")
        for name, those in sorted(found.items(), key=lambda item: -len(item[1]))
    ]
    return f"{disturbed} of {len(checked)} runs {verb} disturbed: {', '.join(causes)}"


def mostly_disturbed(measurements: Sequence[Measurement]) -> bool:
    """Whether other programs or machines used the CPUs in at least half of the runs."""
    disturbed = sum(
        any(note.when == "during" and note.id in _BY_OTHERS for note in one.conditions.notes)
        for one in measurements
        if isinstance(one, RunRecord) and one.conditions is not None
    )
    return 2 * disturbed >= len(measurements) > 0


def others_text(measurements: Iterable[Measurement]) -> str:
    """CPUs used by other programs, the median over runs; "" if unknown or few."""
    runs = [one for one in measurements if isinstance(one, RunRecord)]
    used = _values("other_cpus", [one.conditions for one in runs if one.conditions is not None])
    if not used or (typical := median(used)) < _BUSY:
        return ""
    facts = runs[-1].environment
    cpus = facts.get("usable_cpus") or facts.get("logical_cpus")
    of = f" of {count(cpus, 'CPU', 'CPUs')}" if isinstance(cpus, int) else " CPUs"
    return f"other programs use {typical:.1f}{of}"


def measured_again(measurements: Iterable[Measurement]) -> tuple[int, str]:
    """Number of pairs of `cnnbench ab` that were measured again, and the causes in words."""
    lost: dict[object, tuple[tuple[str, str], ...]] = {}
    for one in measurements:
        place = one.ab or {} if isinstance(one, RunRecord) else {}
        if found := tuple(_lost_processes(place)):
            lost[place.get("seed"), place.get("pair")] = found  # both records of a pair hold it
    if not lost:
        return 0, ""
    counted = Counter(one for those in lost.values() for one in those)
    causes = [
        f"a process of {side.upper()} was {how}" + (f" ({times} times)" if times > 1 else "")
        for (side, how), times in counted.items()
    ]
    pairs = count(len(lost), "pair was", "pairs were")
    return len(lost), f"{pairs} measured again: {', '.join(causes)}"


def _lost_processes(place: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Side and end of the lost processes of an `AbPlace` that was not validated."""
    lost = place.get("lost")
    for one in lost if isinstance(lost, (list, tuple)) else ():
        if isinstance(one, Mapping):
            yield str(one.get("side")), str(one.get("how"))


def _amount(name: str, those: Sequence[Conditions]) -> str:
    if name == "load" and (others := _values("other_cpus", those)):
        return f"others kept at most {max(others):.2f} CPUs busy"
    if name == "steal" and (stolen := _values("steal_fraction", those)):
        return f"at most {percent(max(stolen))}"
    return ""


def _values(name: str, those: Sequence[Conditions]) -> list[float]:
    found = (one.during.get(name) for one in those)
    return [float(value) for value in found if isinstance(value, (int, float))]
