"""Results as Markdown tables, and their comparison with the stated figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cnnbench.base.inference import paired_shift, standard_deviation
from cnnbench.base.stats import median
from cnnbench.base.terminal import markdown_table
from cnnbench.base.text import percent
from cnnbench.judge.compare import Verdict, aa_spread
from validation.gates import LIKE, WAITS, Gates, Round
from validation.pauses import EQUAL, JUDGED, MEAN, MEDIAN, PAIRS, PauseRates
from validation.pool import BASES, SLOWED
from validation.rules import LIMIT, MEASURED_LIMIT, POLICY
from validation.simulation import Rates

_SHOWN = (Verdict.SLOWER, Verdict.FASTER, Verdict.SAME, Verdict.INCONCLUSIVE)
_TWO = "slower by 2 %"  # of pools that are judged with a threshold of 1 %
_FIVE, _TEN = SLOWED
# Required share of real gates with a verdict, by the CPUs that others keep busy.
_POWER: Mapping[float, Mapping[tuple[str, str, Verdict], float]] = {
    0.0: {(_TEN, "8 pairs", Verdict.SLOWER): 0.95, (_FIVE, "16 pairs", Verdict.SLOWER): 0.80},
    1.0: {
        (_TEN, "8 pairs", Verdict.SLOWER): 0.90,
        (_FIVE, "8 pairs", Verdict.SLOWER): 0.60,
        (LIKE, "8 pairs", Verdict.SAME): 0.50,
        (_TWO, "interim analyses at 8, 12, 16 pairs", Verdict.SLOWER): 0.80,
    },
}
ENOUGH_GATES = 200
_FOUND_COST, _FOUND_SHARE = 0.10, 0.90


@dataclass(frozen=True)
class Requirement:
    """A required property.

    Attributes:
      text: description.
      found: measured values.
      met: whether it is met; None if there is too little data.
    """

    text: str
    found: str
    met: bool | None


def simulated(rates: Sequence[Rates]) -> list[str]:
    """A table per rule: kinds of noise in rows, verdicts by truth in columns."""
    header = (
        *("noise", "equal: slower", "faster", "same", "5 % slower: slower", "same"),
        *("10 % slower: slower", "same", "processes, equal", "10 %"),
    )
    lines = []
    for rule in dict.fromkeys(one.rule for one in rates):
        rows = []
        for noise in dict.fromkeys(one.noise for one in rates):
            of_noise = (one for one in rates if one.rule is rule and one.noise == noise)
            equal, five, ten = sorted(of_noise, key=lambda one: one.truth)
            shares = [equal.share(v) for v in _SHOWN[:3]]
            shares += [one.share(v) for one in (five, ten) for v in (Verdict.SLOWER, Verdict.SAME)]
            processes = (f"{one.processes:.1f}" for one in (equal, ten))
            rows.append((noise, *map(percent_of, shares), *processes))
        title = f"**{rule.name}**" + (f" ({rule.broken})" if rule.broken else "")
        lines += [title, "", *table(header, rows), ""]
    return lines


def of_pauses(rates: Sequence[PauseRates]) -> list[str]:
    """A table with a row per shape and cost of pauses: shares of slower and of same."""
    plain = {(one.shape, one.cost): one for one in rates if not one.disturbed}
    disturbed = {(one.shape, one.cost): one for one in rates if one.disturbed}
    header = (
        *("pauses of B", "cost", *(f"{n} pairs" for n in PAIRS)),
        *(f"{n}, one in eight disturbed" for n in PAIRS),
        *(f"{max(PAIRS)}, by {method}" for method in (MEDIAN, MEAN)),
        f"{max(PAIRS)}, one in eight disturbed, by {MEAN}",
    )
    rows = []
    for key, one in plain.items():
        most, other = max(PAIRS), disturbed[key]
        cells = [(each, pairs, JUDGED) for each in (one, other) for pairs in PAIRS]
        cells += [(one, most, MEDIAN), (one, most, MEAN), (other, most, MEAN)]
        shares = (
            " · ".join(
                f"{100 * each.share(verdict, pairs, method):.1f}".removesuffix(".0")
                for verdict in (Verdict.SLOWER, Verdict.SAME)
            )
            for each, pairs, method in cells
        )
        rows.append((one.shape, percent(one.cost, 0) if one.cost else "0", *shares))
    return table(header, rows)


def small_samples(found: Iterable[tuple[str, Counter[Verdict], bool]]) -> list[str]:
    """A table of samples without a valid verdict."""
    rows = [
        (what, ", ".join(f"{verdict.value} {count}" for verdict, count in verdicts.items()))
        for what, verdicts, _ in found
    ]
    return table(("sample", "verdicts"), rows)


def real(gates: Sequence[Gates]) -> list[str]:
    """A table of gates from real processes."""
    rows = []
    for one in gates:
        coins = "all ways" if one.complete else "drawn"
        counts = [one.verdicts[verdict] for verdict in _SHOWN]
        shares = [f"{n} ({percent_of(n / one.count)})" if one.count else "-" for n in counts]
        rows.append((one.plan, one.subject, coins, str(one.count), str(one.processes), *shares))
    header = ("gate", "B", "coins", "gates", "processes", *(v.value for v in _SHOWN))
    return table(header, rows)


def conditions(rounds: Sequence[Round]) -> list[str]:
    """Noise of the pool, and the real slowdown of slowed subjects."""
    processes = [process for one in rounds for process in one.values()]
    like = [one[name].speed for one in rounds for name in BASES]
    apart = [math.log(one[BASES[0]].speed / one[BASES[1]].speed) for one in rounds]
    others = sorted(process.others for process in processes if process.others is not None)
    loads = sorted(process.load for process in processes)
    steps = sorted(1000 * (one[name].step_seconds or 0.0) for one in rounds for name in BASES)
    lines = [
        f"- {len(processes)} processes in {len(rounds)} rounds, "
        f"{median(p.seconds for p in processes):.1f} s each; "
        f"median step {median(steps):.2f} ms, from {steps[0]:.2f} to {steps[-1]:.2f} ms",
        f"- scatter of like processes: {percent(standard_deviation([*map(math.log, like)]))} "
        f"(standard deviation of logarithms; A/A spread {percent(aa_spread(like, POLICY))}), of "
        f"their quotients within a round {percent(standard_deviation(apart))}",
        f"- load before a process: median {median(loads):.2f}, at most {loads[-1]:.2f}",
    ]
    if others:
        lines.append(
            f"- CPUs that others kept busy: median {median(others):.2f}, at most {others[-1]:.2f}"
        )
    for name in (name for name in rounds[0] if name not in BASES):
        quotients = [
            math.log(one[name].speed / math.sqrt(math.prod(one[base].speed for base in BASES)))
            for one in rounds
        ]
        shift = paired_shift(quotients, 0.95)
        text = f"- {name}, as measured over all rounds: {_change(shift.estimate)}"
        if shift.low is not None and shift.high is not None:
            text += f" (95 % interval {_change(shift.low)} to {_change(shift.high)})"
        lines.append(text)
    return lines


def demands(
    rates: Sequence[Rates],
    samples: Iterable[tuple[str, Counter[Verdict], bool]],
    gates: Sequence[Gates],
    busy: float = 0.0,
    pauses: Sequence[PauseRates] = (),
) -> list[Requirement]:
    """Requirements of the gate, compared with the results.

    Args:
      busy: CPUs that others kept busy meanwhile.
    """
    found = [*_of_pauses(pauses)] if pauses else []
    if rates:
        bad = [f"{r.rule.name}, {r.noise}: {text}" for r in rates if (text := r.violation())]
        draws = f"in {rates[0].verdicts.total()} draws each"
        text = f"simulated: wrong verdicts in at most {100 * LIMIT:g} %, {draws}"
        cases = sum(not one.rule.broken for one in rates)
        found.append(Requirement(text, "; ".join(bad) or f"in all {cases} cases", not bad))
        wrong = [what for what, _, right in samples if not right]
        text = "simulated: nothing follows from 1 to 3 values, NaN or nothing"
        found.append(Requirement(text, "; ".join(wrong) or "never", not wrong))
    for one in gates:
        if one.subject == LIKE:
            limit = percent(MEASURED_LIMIT, 0)
            text = (
                f"real, like with like, {one.plan}: at most {limit} red of {ENOUGH_GATES} or more"
            )
            met = one.verdicts[Verdict.SLOWER] <= MEASURED_LIMIT * one.count
            found.append(_of_enough(one, text, _share(one, Verdict.SLOWER), met))
        if one.subject in (_TEN, WAITS):
            other = one.verdicts[Verdict.SAME] + one.verdicts[Verdict.FASTER]
            text = f"real, {one.subject}, {one.plan}: never same or faster"
            found.append(_of_enough(one, text, f"{other} of {one.count}", not other))
        for (subject, plan, verdict), bound in _POWER.get(busy, {}).items():
            if (subject, plan) == (one.subject, one.plan):
                word = "red" if verdict is Verdict.SLOWER else verdict.value
                text = f"real, {subject}, {plan}: at least {percent(bound, 0)} {word}"
                met = one.verdicts[verdict] >= bound * one.count
                found.append(_of_enough(one, text, _share(one, verdict), met))
    return found


def _of_pauses(rates: Sequence[PauseRates]) -> Iterator[Requirement]:
    most = max(PAIRS)
    costly = [one for one in rates if one.cost >= _FOUND_COST]
    found = [(one.share(Verdict.SLOWER, most), one) for one in costly]
    bad = [f"{one.shape}: {percent_of(share)}" for share, one in found if share < _FOUND_SHARE]
    text = f"pauses that cost {percent(_FOUND_COST, 0)} or more: {most} pairs slower in at least "
    least = f"least {percent_of(min(share for share, _ in found))}"
    yield Requirement(f"{text}{percent(_FOUND_SHARE, 0)}", "; ".join(bad) or least, not bad)
    worst = max(
        one.share(verdict, pairs)
        for one in rates
        for pairs in PAIRS
        for verdict in (Verdict.FASTER, Verdict.SLOWER)
        if one.shape == EQUAL or verdict is Verdict.FASTER
    )
    text = f"pauses, one process in eight disturbed: wrong in at most {percent(MEASURED_LIMIT, 0)}"
    yield Requirement(text, f"at most {percent_of(worst)}", worst <= MEASURED_LIMIT)


def demands_table(found: Sequence[Requirement]) -> list[str]:
    """The requirements with the results."""
    words = {True: "met", False: "MISSED", None: "not enough gates"}
    rows = [(one.text, one.found, words[one.met]) for one in found]
    return table(("demand", "found", "verdict"), rows)


def _share(one: Gates, verdict: Verdict) -> str:
    number = one.verdicts[verdict]
    return f"{number} of {one.count} ({percent_of(number / max(one.count, 1))})"


def _of_enough(one: Gates, text: str, found: str, met: bool) -> Requirement:
    return Requirement(text, found, met if one.count >= ENOUGH_GATES else None)


def _change(log: float) -> str:
    return percent(math.expm1(log), signed=True)


def percent_of(share: float) -> str:
    """A share of counts; "0" only for no count at all."""
    return percent(share) if share else "0"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table with numbers in all columns but the first."""
    return markdown_table(header, ["---", *["--:"] * (len(header) - 1)], rows).splitlines()
