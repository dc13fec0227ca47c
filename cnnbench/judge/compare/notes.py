"""The notes of a comparison: runs left out, failed or emulated, and which rules apply."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from operator import itemgetter

from cnnbench.base.stats import group_by
from cnnbench.base.text import count_text, first_few
from cnnbench.judge.compare.comparability import MeasurementGroup, share_of_runs
from cnnbench.judge.compare.disturbance import remeasured_pairs
from cnnbench.judge.compare.verdicts import ComparedConfiguration
from cnnbench.judge.metrics.judged import metrics_to_judge
from cnnbench.judge.metrics.measurement import CONTEXT, KINDS
from cnnbench.judge.metrics.rules import Rules
from cnnbench.machine.gpu import EMULATED_NOTICE
from cnnbench.records.all_reduce import AllReduceRecord
from cnnbench.records.metric import METRICS
from cnnbench.records.run import RunRecord

MOST_NAMED = 5
"""Maximum number of configurations that a note names."""


def left_out_notes(
    sides: Iterable[Sequence[MeasurementGroup]], names: Collection[str]
) -> list[str]:
    """Returns a note for each kind of measurement with the number of configurations that are left
    out, because they have none of the metrics `names`.
    """
    keys = dict.fromkeys(
        (group.configuration.kind, group.configuration.key) for side in sides for group in side
    )
    metrics = " or ".join(name for name in METRICS if name in names)
    return [
        f"{count_text(len(left_out), 'configuration', 'configurations')} of {KINDS[kind][1]} left "
        f"out: they have no {metrics}"
        for kind, left_out in group_by(keys, itemgetter(0)).items()
        if kind not in CONTEXT and not metrics_to_judge(names, {kind})
    ]


def comparison_notes(
    processes: Sequence[Sequence[RunRecord | AllReduceRecord]],
    entries: Sequence[ComparedConfiguration],
    unpaired: Sequence[int],
    rules: Rules,
) -> Iterator[str]:
    """Yields all notes of a comparison, except those about configurations that were left out.

    Args:
      processes: the records of BASE and of NEW.
      unpaired: number of runs without a partner that were left out, for each entry.
    """
    if any(record.environment.get("emulated_gpus") for side in processes for record in side):
        yield EMULATED_NOTICE
    imported = imported_records_note(record for side in processes for record in side)
    yield from [imported] if imported else []
    yield from _unsuccessful(entries)
    _, repeated = remeasured_pairs(run for entry in entries for run in entry.runs)
    yield from [repeated] if repeated else []
    for name, every in zip(("BASE", "NEW"), processes, strict=True):
        # All-reduces: an interrupted process may still have completed some rows, which count.
        reduced = [record for record in every if not isinstance(record, RunRecord)]
        if stopped := sum(record.status == "interrupted" for record in reduced):
            of = count_text(len(reduced), "all-reduce measurement", "all-reduce measurements")
            verb = "was" if stopped == 1 else "were"
            yield f"{stopped} of {of} in {name} {verb} interrupted: rows not reached are missing"
    for entry, left_out in zip(entries, unpaired, strict=True):
        if left_out:
            runs = count_text(left_out, "run", "runs")
            yield f"{entry.name}: {runs} left out, without a partner"
    for entry in entries:
        for side, records in (("BASE", entry.base), ("NEW", entry.new)):
            trained = (record for record in records if isinstance(record, RunRecord))
            if diverged := sum(not all(map(math.isfinite, run.losses)) for run in trained):
                runs = share_of_runs(diverged, len(records), side)
                yield f"{entry.name}: losses of {runs} are not finite"
    yield from _rule_notes(rules, entries)


def imported_records_note(records: Iterable[RunRecord | AllReduceRecord]) -> str:
    """Returns a note that says how many records were imported from which programs, and what is
    unknown of them. "" if none was imported.
    """
    runs = [record for record in records if isinstance(record, RunRecord)]
    imports = [run.imported for run in runs if run.imported is not None]
    unknown = {name for imported in imports for name in imported.unknown}
    return imported_note([imported.program for imported in imports], unknown)


def imported_note(programs: Iterable[object], unknown: Iterable[str]) -> str:
    """Returns a note that says how many measurements were imported from which programs, or "" if
    `programs` contains only None. `unknown` are names of unknown flags and properties.
    """
    counts = Counter(str(program) for program in programs if program is not None)
    if not counts:
        return ""
    of = ", ".join(f"{number} from {program}" for program, number in counts.items())
    lacking = ", ".join(sorted({*unknown} - {"step_seconds"}))
    note = (
        f"Imported: {of}. Each has one value and no step times, so slow steps, disturbances and "
        "the noise within a process are not judged. Properties that it lacks, such as the machine, "
        "are not compared."
    )
    return f"{note} Unknown of at least one: {lacking}." if lacking else note


def _unsuccessful(entries: Sequence[ComparedConfiguration]) -> Iterator[str]:
    """Yields notes with the number of unsuccessful runs, which medians and values exclude."""
    sides = {
        side: [run for entry in entries for run in getattr(entry, side)] for side in ("base", "new")
    }
    for side, runs in sides.items():
        for kind, nouns in KINDS.items():
            statuses = [run.status for run in runs if run.kind == kind]
            bad = Counter(status for status in statuses if status != "ok")
            if bad:
                what = ", ".join(f"{number} {status}" for status, number in bad.items())
                number = f"{bad.total()} of {count_text(len(statuses), *nouns)}"
                yield f"left out of medians and values: {number} in {side.upper()} ({what})"


def _rule_notes(rules: Rules, entries: Sequence[ComparedConfiguration]) -> Iterator[str]:
    """Yields a note for each rule, with the configurations to which the rule applies, and a note
    for each regression that a rule accepts.
    """
    for place in range(1, len(rules.rules) + 1):
        title = rules.title(place)
        names = [entry.name for entry in entries if entry.rule == title]
        fits = "fits no configuration"
        if names:
            effects = rules.rules[place - 1].effects()
            fits = f"applies to {first_few(names, MOST_NAMED)}: {effects}"
        yield f"{rules.short_source}, digest {rules.digest}: {title} {fits}"
    by_message = replace(rules, accept=(), accept_by_message=True)
    for entry in entries:
        for result in entry.results:
            if acceptance := result.accepted:
                verb = "was" if acceptance.has_ended else "is"
                finding = f"{entry.name}: {result.word} of {result.metric.name}"
                yield f"{finding} {verb} accepted by {acceptance.source_text}"
            elif acceptance := entry.acceptance(by_message, result.metric, result.verdict):
                only = "accepts this only if rules contain accept_by_message = true"
                yield f"{entry.name}: {acceptance.source_text} {only}"
    if text := rules.unknown_commits_text():
        yield text
