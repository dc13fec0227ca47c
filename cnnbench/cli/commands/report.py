"""``cnnbench report``: write results as one HTML page, Markdown or a table."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cnnbench.base.document import Answer
from cnnbench.base.terminal import LineWriter, ProgressLine
from cnnbench.base.text import integer
from cnnbench.campaigns.ab.sessions import find_only_experiment
from cnnbench.campaigns.bisect.texts import stored_result
from cnnbench.campaigns.launch import flags_to_arguments
from cnnbench.campaigns.processes import stored_answers
from cnnbench.campaigns.sweep.run import SWEEP
from cnnbench.cli.commands import (
    choose_format,
    declare_output_flag,
    declare_quiet_flag,
    write_or_print_output,
)
from cnnbench.cli.commands.history import HistoryFlags, check_commit_url, load_commits
from cnnbench.cli.commands.judging import (
    JudgingFlags,
    declare_fail_on_flag,
    parse_fail_on,
    warn_of_skipped_files,
    warn_of_unknown_commits,
)
from cnnbench.cli.commands.next_steps import further_analysis_planner
from cnnbench.errors import ExitCode, FlagError, PathError, UsageError
from cnnbench.flags import flag, parse_command, redeclare_flag, specs_of
from cnnbench.judge.compare import Comparison
from cnnbench.judge.compare.comparability import check_fact_names
from cnnbench.judge.compare.verdicts import FAIL_ON
from cnnbench.judge.history import METRICS, HistoryEntry, all_series
from cnnbench.judge.history.blocks import history_answers, history_section
from cnnbench.judge.history.page import HistoryDocument, make_history
from cnnbench.judge.metrics.judged import CPU_TIME, THROUGHPUT
from cnnbench.judge.metrics.rules import Rules
from cnnbench.judge.metrics.rules_file import load_rules, rules_paths
from cnnbench.judge.report import FORMATS, ReportSubject, build, gather, load, render
from cnnbench.judge.report.tables import TABLES, to_csv
from cnnbench.machine.repository import CommitGraph, commit_url_template
from cnnbench.records.all_reduce import AllReduceRecord
from cnnbench.records.files import OutputFile, check_outputs, report_failed_writes
from cnnbench.records.load import Loaded, find_files
from cnnbench.records.run import RunRecord

_ABOUT = """\
Usage: cnnbench report RECORDS... [FLAGS]

Writes a report on run records (--result_json), all-reduce measurements and what tune and roofline
found: one HTML file that needs nothing else, Markdown, or a CSV table. RECORDS are files, folders
with all *.json below them, or quoted patterns. The page cnnbench docs report explains the values.

  cnnbench report results --title="Three networks" -o report.html
  cnnbench report results --format=csv --table=runs
"""

_EXIT_CODES = """\
Exit codes: 0 the report was written (its verdicts do not matter: cnnbench compare checks them); 1
it was written, and what --fail_on names was found; 3 it was written, but a faulty file was skipped;
2 wrong use; 4 it could not be written.
"""


@dataclass(frozen=True, kw_only=True)
class ReportFlags:
    """Flags of `cnnbench report`."""

    output: str | None = declare_output_flag(
        "File for the report. If not given: report.html, or stdout for other formats."
    )
    format: str = flag("html", "What to write.", choices=(*FORMATS, "csv"))
    table: str = flag("configurations", "Table of the CSV file.", choices=tuple(TABLES))
    title: str = flag("", "Title of the page. If empty, the names of the models.")
    baseline: str | None = flag(
        None, "Records to compare with, as cnnbench compare does.", path="file"
    )
    git: str | None = redeclare_flag(
        HistoryFlags, "git", help="Order commits as the repository in this folder does."
    )
    commit_url: str = redeclare_flag(
        HistoryFlags,
        "commit_url",
        help="Address of a commit, with {commit} in place of its hash. Commits on the page link to "
        "this address. If not given, it is derived from the remote origin of --git or from the "
        "records.",
    )
    threshold: float | None = redeclare_flag(JudgingFlags, "threshold")
    allow_different: str = redeclare_flag(JudgingFlags, "allow_different")
    rules: str | None = redeclare_flag(JudgingFlags, "rules")
    quiet_conditions: str = declare_quiet_flag()
    fail_on: tuple[str, ...] | None = declare_fail_on_flag(
        "What sets exit code 1, comma-separated: slower, faster or changed, the verdict on NEW; "
        "step, a regression over commits that has not been undone; never, as if not given.",
        "changed",
        "step",
    )


HELP = (_ABOUT, [("Flags", specs_of(ReportFlags))], _EXIT_CODES)


def main(argv: Sequence[str]) -> int:
    """Writes a report."""
    values, arguments = parse_command(argv, specs_of(ReportFlags))
    options = ReportFlags(**choose_format(values, specs_of(ReportFlags)))
    _check_options(options, values)
    if not arguments:
        raise UsageError(
            "cnnbench report takes run records: files, folders or quoted patterns; "
            "cnnbench run --result_json=FILE writes one"
        )
    output = options.output
    if output is None and options.format == "html":
        output = "report.html"
    inputs = (*arguments, options.baseline, *rules_paths(options.rules))
    check_outputs([OutputFile("output", output)], inputs)
    if options.format != "csv":
        _check_file_count(arguments)
    commits = load_commits(options.git)
    loaded = _load_results(arguments)
    order = None if commits is None else commits.places
    fails_on = parse_fail_on(options.fail_on) or ()
    verdicts = tuple(word for word in fails_on if word in FAIL_ON)
    of_verdicts = None if options.fail_on is None else verdicts
    results = _make_subject(options, loaded, arguments, order, of_verdicts)
    if verdicts and results.comparison is None:
        raise FlagError("fail_on", ",".join(fails_on), _NO_VERDICT)
    fails = tuple({"step"} & {*fails_on})
    histories = _histories(results, commits, fails, load_rules(options.rules))
    if options.format == "csv":
        text = to_csv(results, options.table)
    else:
        text = _page_text(options, results, histories, arguments)
    write_or_print_output(output, text)
    report_failed_writes()
    if output is not None:
        LineWriter(sys.stdout).write_lines([f"wrote {output}"])
    comparison = results.comparison
    skipped = (*results.skipped, *(() if comparison is None else comparison.skipped))
    warn_of_skipped_files(skipped)
    warn_of_unknown_commits(record.subject for record in loaded.all_records)
    is_worse = verdicts and comparison is not None and comparison.exit_code == ExitCode.REGRESSION
    if is_worse or any(history.failed_on for history in histories):
        return ExitCode.REGRESSION
    return ExitCode.INCONCLUSIVE if any(file.defect for file in skipped) else ExitCode.OK


def _page_text(
    options: ReportFlags,
    results: ReportSubject,
    histories: Sequence[HistoryDocument],
    paths: Sequence[str],
) -> str:
    """The report as a page or as Markdown. If the only path is the folder of a command, the report
    begins with the answer of the command.
    """
    commit_url = options.commit_url or commit_url_template(options.git)
    answers: list[Answer] = []
    before: list[Answer] = []
    sections = [history_section(history, commit_url) for history in histories]
    for history in histories:
        if any(series.enough for series in history.series):
            answers += history_answers(history)
    for folder in map(Path, paths if len(paths) == 1 else ()):
        bisected = stored_result(folder)
        if bisected is not None:
            answers, sections = [bisected[0]], [*bisected[1], *sections]
        before = [answer for answer, _ in stored_answers(SWEEP, folder)]
    page = build(results, options.title, answers, sections, before)
    return render(page, options.format, ProgressLine())


def _check_options(options: ReportFlags, values: dict[str, object]) -> None:
    if options.format != "csv" and "table" in values:
        raise FlagError("table", options.table, "needs --format=csv")
    check_commit_url(options.commit_url)
    if options.commit_url and options.format == "csv":
        raise FlagError("commit_url", options.commit_url, "needs --format=html or markdown")
    if options.baseline is None:
        for name in ("threshold", "allow_different"):
            if name in values:
                raise FlagError(name, values[name], "needs --baseline")


def _check_file_count(paths: Sequence[str]) -> None:
    """Raises UsageError if there are too many record files for a report."""
    number = sum(1 for _ in find_files(paths))
    if number > _MOST_FILES:
        raise UsageError(
            f"{' '.join(paths)}: {integer(number)} files, and a report covers at most "
            f"{integer(_MOST_FILES)}; cnnbench history follows them over time, and "
            "--format=csv writes tables of all"
        )


_MOST_FILES = 10_000
_NO_VERDICT = "needs --baseline, or the results of cnnbench ab"


def _load_results(paths: Sequence[str]) -> Loaded:
    loaded = load(paths, progress=ProgressLine())
    results = (*loaded.all_records, *loaded.studies)
    if not results and not loaded.defects:
        raise PathError(", ".join(paths), "neither run records nor all-reduce measurements")
    return loaded


def _histories(
    results: ReportSubject, commits: CommitGraph | None, fail_on: tuple[str, ...], rules: Rules
) -> list[HistoryDocument]:
    """The histories of the metrics that a report shows if its records are from several commits.

    Empty if the report shows a comparison.
    """
    histories = []
    records: list[RunRecord | AllReduceRecord] = [*results.runs, *results.allreduces]
    if results.comparison is not None:
        return []
    metrics = (THROUGHPUT, METRICS["bus_bandwidth"])
    names = [metric.name for metric in (*metrics, CPU_TIME)]
    entries = [entry for record in records for entry in HistoryEntry.all_of(record, names)]
    for metric in metrics:
        of = [entry for entry in entries if entry.configuration.kind in metric.kinds]
        if len({entry.origin.code_state for entry in of if entry.commit}) > 1:
            order = None if commits is None else commits.places
            series = all_series(of, metric, order=order)
            histories.append(make_history(series, metric, rules, commits, fail_on=fail_on))
    return histories


def _make_subject(
    options: ReportFlags,
    loaded: Loaded,
    paths: Sequence[str],
    order: Mapping[str, int] | None,
    fail_on: tuple[str, ...] | None,
) -> ReportSubject:
    if options.baseline is None:
        # If the only path is the folder of an experiment, the report contains its verdict.
        comparison = _comparison_of_experiment(paths[0], fail_on) if len(paths) == 1 else None
        if comparison is None and options.table == "comparison":
            raise FlagError("table", "comparison", _NO_VERDICT)
        return gather(loaded, comparison=comparison, order=order)
    try:
        baseline = _load_results([options.baseline])
    except PathError as error:
        raise FlagError("baseline", error.path, error.reason) from None
    judging = JudgingFlags(
        threshold=options.threshold,
        allow_different=options.allow_different,
        rules=options.rules,
    )
    check_fact_names(judging.allowed_differences, baseline.all_records, loaded.all_records)
    criteria = replace(
        judging.criteria(),
        fail_on=fail_on,
        plan=further_analysis_planner(judging.policy),
    )
    results = gather(
        loaded,
        baseline,
        criteria,
        labels=(options.baseline, " ".join(paths)),
        order=order,
    )
    if len(paths) > 1 or results.comparison is None:
        return results
    flags = {name: getattr(options, name) for name in ("threshold", "allow_different", "rules")}
    if fail_on is not None:
        flags["fail_on"] = ",".join(fail_on) or "never"
    words = flags_to_arguments({name: value for name, value in flags.items() if value})
    repeat = shlex.join(("cnnbench", "compare", options.baseline, *paths, *words))
    return replace(results, comparison=replace(results.comparison, repeat=repeat))


def _comparison_of_experiment(path: str, fail_on: tuple[str, ...] | None) -> Comparison | None:
    """The comparison of the experiment in a folder, and the command that repeats the experiment;
    None if there is no experiment.
    """
    earlier = find_only_experiment(Path(path))
    comparison = None if earlier is None else earlier.final_comparison(fail_on=fail_on)
    if earlier is None or comparison is None or not earlier.experiment.repeat:
        return comparison
    return replace(comparison, repeat=shlex.join(("cnnbench", *earlier.experiment.repeat)))
