"""Writes the notes of a comparison: runs left out, failed or emulated, and which rules apply."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from operator import itemgetter

from cnnbench.base.stats import group_by
from cnnbench.base.text import count_text, first_few
from cnnbench.judge.compare import phrases
from cnnbench.judge.compare.comparability import MeasurementGroup
from cnnbench.judge.compare.disturbance import lost_pairs
from cnnbench.judge.compare.verdicts import ComparedConfiguration
from cnnbench.judge.metrics.judged import metrics_to_judge
from cnnbench.judge.metrics.measurement import CONTEXT, KINDS, kind_of
from cnnbench.judge.metrics.rules import Rules
from cnnbench.machine.gpu import EMULATED_NOTICE
from cnnbench.records.all_reduce import AllReduceRecord
from cnnbench.records.metric import METRICS
from cnnbench.records.run import RunRecord


def left_out_notes(
    sides: Iterable[Sequence[MeasurementGroup]], names: Collection[str]
) -> list[str]:
    """Returns a note for each kind of measurement with the number of configurations that are left
    out, because they have none of the metrics `names`.
    """
    keys = dict.fromkeys(
        (group.configuration.kind, group.configuration.key) for side in sides for group in side
    )
    return [
        phrases.WITHOUT_METRICS.format(
            configurations=count_text(len(left_out), "configuration", "configurations"),
            kind=KINDS[kind][1],
            metrics=" or ".join(name for name in METRICS if name in names),
        )
        for kind, left_out in group_by(keys, itemgetter(0)).items()
        if kind not in CONTEXT and not metrics_to_judge(names, {kind})
    ]


def comparison_notes(
    processes: Sequence[Sequence[RunRecord | AllReduceRecord]],
    entries: Sequence[ComparedConfiguration],
    unpaired: Sequence[int],
    rules: Rules,
    aa_notes: Sequence[str],
) -> Iterator[str]:
    """Yields all notes of a comparison, except those about configurations that were left out.

    Args:
      processes: the records of BASE and of NEW.
      unpaired: number of runs without a partner that were left out, for each entry.
      aa_notes: notes on A/A runs.
    """
    if any(record.environment.get("emulated_gpus") for side in processes for record in side):
        yield EMULATED_NOTICE
    imported = imported_records_note(record for side in processes for record in side)
    yield from [imported] if imported else []
    yield from _unsuccessful(entries)
    _, repeated = lost_pairs(run for entry in entries for run in entry.runs)
    yield from [repeated] if repeated else []
    yield from _interrupted(processes)
    yield from aa_notes
    for entry, left_out in zip(entries, unpaired, strict=True):
        if left_out:
            runs = count_text(left_out, "run", "runs")
            yield phrases.UNPAIRED_RUNS.format(name=entry.name, runs=runs)
    for entry in entries:
        for side, records in (("BASE", entry.base), ("NEW", entry.new)):
            trained = (record for record in records if isinstance(record, RunRecord))
            if diverged := sum(not all(map(math.isfinite, run.losses)) for run in trained):
                runs = phrases.share_of_runs(diverged, len(records), side)
                yield phrases.INFINITE_LOSSES.format(name=entry.name, runs=runs)
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
    template = phrases.IMPORTED_AND_UNKNOWN if lacking else phrases.IMPORTED
    return template.format(sources=of, unknown=lacking)


def _unsuccessful(entries: Sequence[ComparedConfiguration]) -> Iterator[str]:
    """Yields notes with the number of unsuccessful runs, which medians and values exclude."""
    sides = {
        side: [run for entry in entries for run in getattr(entry, side)] for side in ("base", "new")
    }
    for side, runs in sides.items():
        for kind, nouns in KINDS.items():
            statuses = [run.status for run in runs if kind_of(run) == kind]
            bad = Counter(status for status in statuses if status != "ok")
            if bad:
                what = ", ".join(f"{number} {status}" for status, number in bad.items())
                number = f"{bad.total()} of {count_text(len(statuses), *nouns)}"
                yield phrases.LEFT_OUT.format(number=number, side=side.upper(), statuses=what)


def _interrupted(
    sides: Sequence[Sequence[RunRecord | AllReduceRecord]],
) -> Iterator[str]:
    """Yields notes with the number of interrupted all-reduce processes in BASE and in NEW. An
    interrupted process may have completed some of its rows.
    """
    for name, records in zip(("BASE", "NEW"), sides, strict=True):
        reduced = [record for record in records if not isinstance(record, RunRecord)]
        if stopped := sum(record.status == "interrupted" for record in reduced):
            yield phrases.interrupted_reductions(stopped, len(reduced), name)


def _rule_notes(rules: Rules, entries: Sequence[ComparedConfiguration]) -> Iterator[str]:
    """Yields a note for each rule, with the configurations to which the rule applies, and a note
    for each regression that a rule accepts.
    """
    for place in range(1, len(rules.rules) + 1):
        title = rules.title(place)
        names = [entry.name for entry in entries if entry.rule == title]
        yield (phrases.RULE if names else phrases.UNUSED_RULE).format(
            source=rules.short_source,
            digest=rules.digest,
            title=title,
            names=first_few(names, phrases.MOST_NAMED),
            effects=rules.rules[place - 1].effects(),
        )
    by_message = replace(rules, accept=(), accept_by_message=True)
    for entry in entries:
        for result in entry.results:
            if acceptance := result.accepted:
                ended = acceptance.has_ended
                yield (phrases.ONCE_ACCEPTED_RESULT if ended else phrases.ACCEPTED_RESULT).format(
                    name=entry.name,
                    word=result.word,
                    metric=result.metric.name,
                    source=acceptance.source_text,
                )
            elif acceptance := entry.acceptance(by_message, result.metric, result.verdict):
                source = acceptance.source_text
                yield phrases.WOULD_ACCEPT.format(name=entry.name, source=source)
    if text := rules.unknown_commits_text():
        yield text
