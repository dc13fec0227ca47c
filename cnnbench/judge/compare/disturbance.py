"""Reports which runs were disturbed by other programs, and which pairs were measured again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from cnnbench.base.stats import median
from cnnbench.base.text import count_text, percent
from cnnbench.judge.compare import phrases
from cnnbench.judge.compare.configuration import ab_place
from cnnbench.judge.metrics.measurement import Measurement
from cnnbench.machine.checks import CONDITIONS
from cnnbench.records.run import RunRecord

_BUSY = 0.05
"""If other programs used fewer CPUs than this, texts do not mention other programs."""

_BY_OTHERS = frozenset(("load", "steal"))


def disturbance_text(measurements: Iterable[Measurement]) -> str:
    """Returns text that says how many runs were disturbed, and by what; "" if no run recorded its
    measuring conditions.
    """
    runs = (record for record in measurements if isinstance(record, RunRecord))
    checked = [run for run in runs if run.conditions is not None]
    if not checked:
        return ""
    by_run = [(record, _ids(record)) for record in checked]
    names = dict.fromkeys(name for _, own in by_run for name in own)
    runs_by_name = {name: [record for record, own in by_run if name in own] for name in names}
    if not runs_by_name:
        most = _amount("load", checked) or phrases.NOT_CHECKED
        number = count_text(len(checked), "run", "runs")
        return phrases.UNDISTURBED.format(runs=number, most=most)
    disturbed = sum(bool(own) for _, own in by_run)
    most_first = sorted(runs_by_name.items(), key=lambda item: -len(item[1]))
    causes = [_cause(*item) for item in most_first]
    return phrases.disturbed(disturbed, len(checked), causes)


def mostly_disturbed(measurements: Sequence[Measurement]) -> bool:
    """Whether others (programs, VMs) used the CPUs in the timed steps of half of the runs."""
    disturbed = sum(not _BY_OTHERS.isdisjoint(_ids(record)) for record in measurements)
    return 2 * disturbed >= len(measurements) > 0


def other_cpus_text(measurements: Iterable[Measurement]) -> str:
    """Returns text with the median number of CPUs that other programs used during the runs; "" if
    this number is unknown or small.
    """
    runs = [record for record in measurements if isinstance(record, RunRecord)]
    used = _values("other_cpus", runs)
    if not used or (typical := median(used)) < _BUSY:
        return ""
    facts = runs[-1].environment
    cpus = facts.get("usable_cpus") or facts.get("logical_cpus")
    if not isinstance(cpus, int):
        return phrases.OTHER_PROGRAMS_USE.format(cpus=typical)
    usable = count_text(cpus, "CPU", "CPUs")
    return phrases.OTHER_PROGRAMS.format(cpus=typical, usable=usable)


def lost_pairs(measurements: Iterable[Measurement]) -> tuple[int, str]:
    """Returns the number of pairs that `cnnbench ab` measured again because a process was killed,
    and a text with the causes.
    """
    lost: dict[object, list[tuple[str, str]]] = {}
    for record in measurements:
        place = ab_place(record)
        ends = place.get("lost")
        ends = ends if isinstance(ends, (list, tuple)) else ()
        sides = [(str(e.get("side")), str(e.get("how"))) for e in ends if isinstance(e, Mapping)]
        if sides:
            lost[place.get("seed"), place.get("pair")] = sides
    if not lost:
        return 0, ""
    counted = Counter(process for processes in lost.values() for process in processes)
    causes = [
        (phrases.LOST_PROCESSES if times > 1 else phrases.LOST_PROCESS).format(
            side=side.upper(), how=how, times=times
        )
        for (side, how), times in sorted(counted.items())
    ]
    return len(lost), phrases.repeated_pairs(len(lost), causes)


def _ids(measurement: Measurement) -> Mapping[str, None]:
    """Returns the IDs of the disturbances in a run's timed steps: the keys, in a fixed order."""
    if not isinstance(measurement, RunRecord) or measurement.conditions is None:
        return {}
    return dict.fromkeys(note.id for note in measurement.conditions.notes if note.when == "during")


def _cause(name: str, runs: Sequence[RunRecord]) -> str:
    amount = _amount(name, runs)
    template = phrases.DISTURBANCE_AMOUNT if amount else phrases.DISTURBANCE
    condition = CONDITIONS.get(name, name)
    return template.format(condition=condition, runs=len(runs), amount=amount)


def _amount(name: str, runs: Sequence[RunRecord]) -> str:
    if name == "load" and (others := _values("other_cpus", runs)):
        return phrases.MOST_LOAD.format(cpus=max(others))
    if name == "steal" and (stolen := _values("steal_fraction", runs)):
        return phrases.MOST_STOLEN.format(share=percent(max(stolen)))
    return ""


def _values(name: str, runs: Sequence[RunRecord]) -> list[float]:
    values = (run.condition(name) for run in runs)
    return [value for value in values if value is not None]
