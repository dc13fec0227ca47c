"""The modes of `cnnbench strategies` side by side, and the best flags of `cnnbench tune`."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from cnnbench.base.charts import HIGHER, Axis, DistributionRow, Rows, key_of
from cnnbench.base.document import (
    Answer,
    Content,
    Row,
    TableCell,
    Text,
    interval,
    introduced,
    numeric,
    table,
)
from cnnbench.base.text import numbers
from cnnbench.base.text.numbers import binary, count, duration, integer, percent, percents
from cnnbench.judge.compare.configuration import work
from cnnbench.judge.report.results import ProcessValues, ReportSubject, apart, timed_names
from cnnbench.judge.report.sections.quantities import process_chart
from cnnbench.records.strategies import (
    DIFFERENT,
    EQUAL,
    ONE_TOWER,
    REFERENCE,
    StrategiesDocument,
    StrategyRow,
    speeds_of,
    weight_remarks,
)
from cnnbench.records.tune import AS_GIVEN, FASTER, OPEN, SAME, SLOWER, TuneDocument, TuneRow

_TONES = {REFERENCE: "good", EQUAL: "good", DIFFERENT: "bad"}


@introduced
def modes(results: ReportSubject) -> Iterable[Content]:
    """Fresh processes of every mode in random order within rounds (cnnbench strategies). Overhead
    is the time of a step beyond that of one device alone, as a share of it: on GPUs with the images
    of one device, on logical CPU devices, which share the cores, with all of them. Weights are
    compared after the same steps; one_tower sees another batch.
    """
    for title, one in titled(results):
        if one.incomplete is not None:
            yield Text(f"Incomplete: {one.incomplete}", "bad")
        for text, right in weight_remarks(one.rows, one.weights_tolerance):
            yield Text(f"{text[:1].upper()}{text[1:]}.", "" if right else "bad")
        for row in one.rows:
            yield Text(f"Failed: {row.mode}: {row.problem}", "bad") if row.problem else None
        yield [chart(one, title)]
        yield table((_mode(one, row) for row in one.rows), title=title)
        costs = ({"mode": row.mode, **_costs(row)} for row in one.rows)
        yield table(costs, title=f"{title}: memory, start-up, variables", folded=True)


def mode_row(row: StrategyRow, spread: str) -> Row:
    """Cells for a terminal; `spread` is the title of the interval."""
    return {
        "mode": row.mode,
        "all-reduce": row.all_reduce,
        "median images/sec": numeric(row.images_per_sec),
        spread: interval((row.low, row.high)),
        "overhead": numeric(row.overhead, _signed),
        **_costs(row),
        "weights": row.weights,
    }


def _costs(row: StrategyRow) -> Row:
    return {
        "memory": numeric(row.peak_memory_bytes, binary),
        "build, s": numeric(row.build_seconds),
        "first step, s": numeric(row.first_step_seconds),
        "variables": numeric(row.variables, integer),
        "copies": numeric(row.variable_copies, integer),
        "reduction ops": numeric(row.reduction_operations, integer),
    }


def fastest_modes(results: ReportSubject) -> Iterable[Answer]:
    """The fastest modes among those with equal weights, per comparison."""
    for title, one in titled(results):
        alike = [row for row in one.rows if row.weights in (REFERENCE, EQUAL)]
        known = [row for row in alike or one.rows if row.mode != ONE_TOWER]
        right = all(row.weights != DIFFERENT and not row.problem for row in one.rows)
        text, tone = _fastest([row for row in known if row.images_per_sec is not None])
        remarks = (words for words, _ in weight_remarks(one.rows, one.weights_tolerance))
        ended = () if one.incomplete is None else (f"incomplete: {one.incomplete}",)
        if text:
            tone = tone if right else "bad"
            yield Answer(f"Modes of {title}", text, tone, (*ended, *remarks))


def _fastest(measured: Sequence[StrategyRow]) -> tuple[str, str]:
    """The fastest modes, several if their intervals overlap, and a tone."""
    fewest = min((row.processes for row in measured), default=ProcessValues.FEWEST)
    if fewest < ProcessValues.FEWEST:
        text = f"{count(fewest, 'process', 'processes')} of a mode cannot show which one is fastest"
        return f"{text}; --rounds={ProcessValues.FEWEST} can", "unsure"
    if not measured:
        return "", ""
    best, *others = sorted(measured, key=lambda row: -(row.images_per_sec or 0.0))
    near = [row for row in others if (row.high or 0.0) >= (best.low or 0.0)]
    low = min(row.low or 0.0 for row in (best, *near))
    span = f"{numbers.number(low)} to {numbers.number(best.high)}"
    if near:
        names = ", ".join(row.mode for row in near)
        return f"{best.mode} is as fast as {names}: {span} images/sec", ""
    return (
        f"{best.mode} is the fastest: {numbers.number(best.images_per_sec)} images/sec ({span})",
        "",
    )


def titled(results: ReportSubject) -> list[tuple[str, StrategiesDocument]]:
    """Comparisons, each with its network, batch and devices, and its time where these repeat."""
    return timed_names((work_text(one), one) for one in results.strategies)


def work_text(one: StrategiesDocument) -> str:
    """The network, batch and devices of a comparison."""
    parts = work(one.config)
    if one.config.get("precision") not in (None, "fp32"):
        parts.append(str(one.config["precision"]))
    return ", ".join(parts)


def chart(document: StrategiesDocument, title: str = "") -> Rows:
    """Images/sec of every case, a dot per process."""
    return process_chart(
        title or work_text(document),
        Axis(label="images/sec over the timed steps", zero=True, better=HIGHER),
        (
            (row.mode, ProcessValues(speeds_of(document.processes, row.mode)))
            for row in document.rows
        ),
        " images/sec",
    )


def _speeds(document: StrategiesDocument, row: StrategyRow) -> ProcessValues:
    return ProcessValues(speeds_of(document.processes, row.mode))


def _mode(document: StrategiesDocument, row: StrategyRow) -> Row:
    weights, distance = row.weights or numbers.NONE, row.weight_distance
    if row.weights in (EQUAL, DIFFERENT) and distance is not None:
        by = "within" if row.weights == EQUAL else "by"
        weights += ", all bits" if distance == 0 else f", {by} {numbers.number(distance)}"
    return {
        "mode": row.mode,
        "median images/sec": numeric(row.images_per_sec),
        **_speeds(document, row).ends,
        "overhead": numeric(row.overhead, _signed),
        "weights": TableCell(weights, tone=_TONES.get(row.weights, "")),
        "all-reduce": row.all_reduce,
        "processes": numeric(row.processes, integer),
    }


_MOST_DRAWN = 12
_MODEL = "--model="
_signed = partial(percent, signed=True)


@introduced
def best_flags(results: ReportSubject) -> Iterable[Content]:
    """Candidates ran in rounds of short processes, in random order; those that were slower beyond
    doubt left, and the last one was measured in pairs against the flags as they were given
    (cnnbench tune). Gains of the table are estimates from all rounds; that of the verdict is from
    the pairs alone.
    """
    for one in results.tunings:
        name = network(one)
        command = TableCell(shlex.join(one.command), kinds="command")
        yield table([{"flags": _of_command(one), "command": command}], title=name)
        outcome, tone = verdict(one)
        spent = f"{duration(one.seconds)} of {duration(one.budget_seconds)}"
        words = (outcome, one.reason, one.weights, f"it took {spent}")
        said = (f"{word[:1].upper()}{word[1:].rstrip('.')}." for word in words if word)
        yield Text(" ".join(said), tone)
        yield [*_gains(one, name)]
        yield table(map(candidate_row, one.rows), title=f"{name}: candidates")
        refused: Iterable[Row] = (
            {
                "candidate": row.candidate,
                "group": row.group,
                "reason": TableCell(row.reason, kinds="prose"),
            }
            for row in one.refused
        )
        yield table(refused, title=f"{name}: candidates that cannot run", folded=True)


def proofs(results: ReportSubject) -> Iterable[Answer]:
    """The verdict and command line of every search."""
    for one in results.tunings:
        text, tone = verdict(one)
        details = (f"{_of_command(one)}: {shlex.join(one.command)}", one.weights, one.failure)
        yield Answer(f"Best flags of {network(one)}", text, tone, tuple(filter(None, details)))


def verdict(one: TuneDocument) -> tuple[str, str]:
    """The outcome of a search and its tone."""
    pairs = count(one.pairs, "pair", "pairs")
    if one.verdict == FASTER:
        gain = percent(one.gain)
        if one.low is not None and one.high is not None:
            gain += f" ({percents(one.low, one.high)})"
        if one.trains_alike is False:
            return f"{one.leader} is {gain} faster, but trains other weights", "bad"
        return f"{gain} faster than the flags as given, {pairs}", "good"
    if one.verdict == OPEN and one.leader == AS_GIVEN:
        return "no candidate was tried", "unsure"
    if one.verdict == OPEN:
        return f"it is not proven that {one.leader} is faster than the flags as given", "unsure"
    if one.verdict in (SAME, SLOWER):
        how = "as fast as" if one.verdict == SAME else "slower than"
        return f"{one.leader} is {how} the flags as given", ""
    return "no candidate was faster than the flags as given", ""


def _of_command(one: TuneDocument) -> str:
    """The candidate of the document's command line: the leader only if proven."""
    return one.leader if one.proven else AS_GIVEN


def network(one: TuneDocument) -> str:
    """The network whose flags were searched."""
    words = (word.removeprefix(_MODEL) for word in one.command if word.startswith(_MODEL))
    return next(words, "the default network")


def _gains(one: TuneDocument, name: str) -> Iterator[Rows]:
    """The chart of the gains, if there are some."""
    measured = [row for row in one.rows if row.gain is not None and row.candidate != AS_GIVEN]
    if not measured:
        return
    drawn = measured[:_MOST_DRAWN]
    shared, labels = apart([row.candidate.split(" ") for row in drawn], " ")
    rows = tuple(
        DistributionRow(
            label=label,
            values=((row.gain or 0.0, f"{label}: {_signed(row.gain)}"),),
            low=row.low,
            high=row.high,
            text=_signed(row.gain),
        )
        for row, label in zip(drawn, labels, strict=True)
    )
    which = "the candidates" if drawn == measured else f"the {_MOST_DRAWN} fastest candidates"
    alike = f", all with {shared}" if shared else ""
    yield Rows(
        title=f"{name}: gain of {which} over the flags as given{alike}",
        x=Axis(label="speed above the flags as given", format="percent", better=HIGHER),
        rows=rows,
        limit=(0.0, "as given"),
        note=key_of(rows, dot="the estimate from all rounds", band="its 95 % interval"),
    )


def candidate_row(row: TuneRow, long: bool = True) -> Row:
    """Cells of a candidate; `long`: with the reason why it left."""
    when = "" if row.after is None else f" after round {row.after} of {row.group}"
    left = f"{row.left}{when}{': ' if row.reason else ''}{row.reason}"
    left = left if long else f"{row.left}, {row.group} {row.after}"
    return {
        "candidate": row.candidate + (f" ({', '.join(row.changes)})" if row.changes else ""),
        "gain": numeric(None if row.candidate == AS_GIVEN else row.gain, _signed),
        ProcessValues.INTERVAL: interval((row.low, row.high), _signed),
        "median images/sec": numeric(row.images_per_sec),
        "processes": numeric(row.processes, integer),
        "left": TableCell(left if row.left else "", kinds="prose"),
    }
