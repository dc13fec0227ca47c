"""The report: a table of speeds and a table of requirements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cnnbench.base.stats import median
from cnnbench.base.terminal import aligned
from cnnbench.base.text import binary, number, percent
from peers.demands import Finding
from peers.measurement import OK, Measurement, Reading
from peers.scenarios import SCENARIOS

# Share of CPUs kept busy by others from which figures are not reliable.
QUIET = 0.05


def subjects_table(measurements: Sequence[Measurement]) -> list[str]:
    """Medians over rounds for every subject, and the reasons why some did not run."""
    groups: dict[tuple[str, str, str], list[Measurement]] = {}
    for m in sorted(
        measurements, key=lambda m: ([*SCENARIOS].index(m.scenario), m.subject, m.dtype)
    ):
        groups.setdefault((m.scenario, m.subject, m.dtype), []).append(m)
    rows: list[tuple[str, ...]] = [
        (
            *("scenario", "subject", "dtype", "rounds"),
            *("median images/sec", "median step", "peak memory", "other"),
        )
    ]
    notes = []
    for (scenario, subject, dtype), group in groups.items():
        readings = [m.reading for m in group if m.status == OK and m.reading is not None]
        rows.append((scenario, subject, dtype, str(len(readings)), *_figures(readings)))
        reasons = dict.fromkeys(f"{m.status}: {m.reason}" for m in group if m.status != OK)
        notes += [f"{scenario}, {subject} {dtype} {reason}" for reason in reasons]
    return aligned(rows, left=(0, 1, 2)) + notes


# For each column, the figures of a reading that it may show, with their formats; the first known
# one is shown.
_COLUMNS: Sequence[Mapping[str, Callable[[float], str]]] = (
    {"images_per_sec": "{:.2f}".format},
    {"median_step_seconds": lambda seconds: f"{1e3 * seconds:.2f} ms"},
    {"peak_bytes": binary},
    {
        "achieved_flops_per_sec": lambda flops: f"{number(flops / 1e9)} GFLOP/s",
        "share_of_bare_loop": lambda share: f"{percent(share)} of bare loop",
        "seconds": "{:.3f} s".format,
        "bytes_last": binary,
    },
)


def _figures(readings: Sequence[Reading]) -> list[str]:
    def middle(attribute: str) -> float | None:
        values = [getattr(reading, attribute) for reading in readings]
        known = [value for value in values if value is not None]
        return median(known) if known else None

    def shown(column: Mapping[str, Callable[[float], str]]) -> str:
        found = ((text, middle(attribute)) for attribute, text in column.items())
        return next((text(value) for text, value in found if value is not None), "")

    return [shown(column) for column in _COLUMNS]


def demands_table(findings: Sequence[Finding]) -> list[str]:
    """Mean, 95 % interval over rounds, bound and verdict of every requirement."""
    rows = [("scenario", "figure", "mean", "95 % interval", "bound", "rounds", "verdict")]
    for finding in findings:
        demand, estimate = finding.demand, finding.estimate
        bound = ""
        if demand.bound is not None:
            bound = f"{'<=' if demand.at_most else '>='} {demand.bound:.2f}"
        mean, interval, rounds = "", "", "0"
        if estimate is not None:
            mean, rounds = f"{estimate.mean:.3f}", str(estimate.rounds)
            if estimate.rounds > 1:
                interval = f"{estimate.low:.3f} .. {estimate.high:.3f}"
        note = f" ({finding.note})" if finding.note else ""
        rows.append(
            (demand.scenario, demand.text, mean, interval, bound, rounds, finding.verdict + note)
        )
    return aligned(rows, left=(0, 1, -1))


def neighbours(measurements: Sequence[Measurement], cpus: int) -> list[str]:
    """CPU time of other processes, with a warning when it was high."""
    busy = [m.others_cpus for m in measurements if m.others_cpus is not None]
    if not busy:
        return ["Other processes: unknown"]
    middle, most = median(busy), max(busy)
    line = f"Other processes kept {middle:.2f} of {cpus} CPUs busy (median; at most {most:.2f})"
    if most <= QUIET * cpus:
        return [line]
    return [line, "WARNING: this machine was not quiet; repeat before believing a verdict"]
