"""``cnnbench history``: follow a metric over commits and find where its level changed."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cnnbench.base import plugins
from cnnbench.base.terminal import ProgressLine, print_notice, print_warning
from cnnbench.base.text import count_text
from cnnbench.cli.commands import (
    PluginFlags,
    choose_format,
    declare_output_flag,
    write_or_print_output,
)
from cnnbench.cli.commands.judging import (
    JudgingFlags,
    check_format,
    declare_fail_on_flag,
    declare_format_flag,
    export_with_notice,
    parse_fail_on,
    warn_of_skipped_files,
    warn_of_unknown_commits,
)
from cnnbench.errors import ExitCode, FlagError, UsageError
from cnnbench.flags import flag, parse_command, redeclare_flag, specs_of
from cnnbench.judge.history import (
    METRICS,
    Contents,
    Metric,
    Selection,
    TimeSeries,
    Trend,
    all_series,
    blocks,
    contents,
    page,
)
from cnnbench.judge.history.page import HistoryDocument
from cnnbench.judge.metrics.judged import CPU_TIME, THROUGHPUT
from cnnbench.judge.metrics.rules_file import load_rules, rules_paths
from cnnbench.machine.repository import (
    CommitGraph,
    GitError,
    commit_url_template,
    why_commit_is_missing,
)
from cnnbench.models.registry import all_model_names
from cnnbench.records.files import OutputFile, check_outputs, write_bytes
from cnnbench.records.metric import HISTORY, load_missing_metrics
from cnnbench.run.runtime.loading import without_gc

_ABOUT = """\
Usage: cnnbench history DIR [FLAGS]

Follows a metric over the records in DIR and its subfolders. Each configuration on each machine has
a time series with one value per commit: the median of the commit's processes. Finds level changes,
and names the last commit before and the first commit after each level change.
The page cnnbench docs history explains how.
"""

# The pattern excludes characters that end an HTML attribute or a Markdown link.
_COMMIT_URL = re.compile(r"https?://[\w.~:/?#@!$&*+,;=%{}-]+")

_EXIT_CODES = """\
Exit codes: 0 done, whatever was found; 1 what --fail_on names was found; 3 a faulty file was
skipped, or with --fail_on the clone of --git is shallow and lacks measured commits; 2 wrong use; 4
a file or standard output could not be written.
"""


@dataclass(frozen=True, kw_only=True)
class HistoryFlags(PluginFlags):
    """Flags of `cnnbench history`."""

    metric: str = flag(
        "throughput",
        "Metric of the history (cnnbench docs metrics).",
        choices=HISTORY,
        checked_late=True,
    )
    by: str = flag(
        "commit",
        "What each value of a time series summarises: the runs of a commit, the runs of a day, a "
        "single run, or the runs with equal values of a label or recorded property. The commit is "
        "--result_label=commit=..., otherwise the commit of the measured repository, otherwise "
        "the commit of cnnbench. If no commit is known, the day is used instead.",
    )
    model: str = flag(
        "",
        "Only this network and all-reduces of its gradients. The value may be a pattern such as "
        "resnet*.",
        known=all_model_names,
    )
    configuration: str = flag(
        "", "Only configurations whose names contain this text or match this pattern."
    )
    machine: str = flag(
        "", "Only machines whose name or host name contains this text or matches this pattern."
    )
    since: str | None = flag(None, "Only runs since this day or time (UTC).")
    git: str | None = flag(
        None,
        "Use the order of the commits in the git repository in this folder, not their time.",
        path="folder",
    )
    threshold: float | None = flag(
        None,
        "Smallest relevant level change, in per cent (for accuracies, percentage points). If not "
        "given, the threshold of the metric is used (cnnbench docs metrics): 3 for throughput.",
        minimum=0.0,
        below=1000.0,
    )
    rules: str | None = redeclare_flag(JudgingFlags, "rules")
    last: int = flag(
        20, "Number of values that are listed for each time series; 0 lists all.", minimum=0
    )
    format: str = declare_format_flag(("table", "csv", "json"), "What to print.")
    output: str | None = declare_output_flag(
        "Write the output to this file. Its ending names the format if --format is not given."
    )
    plot: str | None = flag(
        None,
        "Draw the time series into this file. .html: a page with all charts. .svg, .png or "
        ".pdf: the charts. .md: the page without charts.",
        path="file",
    )
    commit_url: str = flag(
        "",
        "Address of a commit, with {commit} in place of its hash, such as "
        "https://github.com/OWNER/REPO/commit/{commit}. Commits on a page link to this address. If "
        "not given, it is derived from the remote origin of --git or from the records.",
    )
    fail_on: tuple[str, ...] | None = declare_fail_on_flag(
        "What sets exit code 1, comma-separated: step or slower, a regression that has not been "
        "undone; faster, a gain that has not been undone; never, as if not given.",
        "step",
    )


SPECS = {spec.name: spec for spec in specs_of(HistoryFlags)}
HELP = (_ABOUT, [("Flags", (*SPECS.values(),))], _EXIT_CODES)


# Garbage collection would take a seventh of the time, and `main` makes no reference cycles.
@without_gc()
def main(argv: Sequence[str]) -> int:
    """Lists the values of a metric by commit, and draws them."""
    values, arguments = parse_command(argv, specs_of(HistoryFlags))
    pages = "--plot=FILE writes pages"
    options = HistoryFlags(**choose_format(values, specs_of(HistoryFlags), pages))
    plugins.load_plugins_of_flags(values)
    load_missing_metrics([options.metric], HISTORY)
    SPECS["metric"].check(options.metric)
    check_format(HistoryFlags, options.format)
    if len(arguments) != 1:
        raise UsageError(f"cnnbench history takes one directory of records, not {len(arguments)}")
    since, fails_on = _parse_since(options.since), parse_fail_on(options.fail_on) or ()
    rules = load_rules(options.rules)
    _check_output_flags(options, arguments[0])
    folder = Path(arguments[0])
    if not os.path.isdir(folder):
        raise UsageError(f"{folder}: no such directory")
    metric = METRICS[options.metric]
    commits = load_commits(options.git)
    # The CPU time shows changes that other programs on the machine hide from the throughput.
    others = (CPU_TIME,) if metric is THROUGHPUT else ()
    names = tuple(read.name for read in (metric, *others))
    folder_contents = contents(folder, ProgressLine(), names)
    if not any(file.defect for file in folder_contents.skipped):
        _check_measured(folder, folder_contents, metric)
    defects = [file for file in folder_contents.skipped if file.defect]
    warn_of_skipped_files(file for file in folder_contents.skipped if file.defect or file.differs)
    warn_of_unknown_commits(entry.subject for entry in folder_contents.entries)
    series = _select_series(options, folder_contents, metric, since, commits)
    document = page.make_history(
        series,
        metric,
        rules,
        commits,
        threshold=options.threshold,
        skipped=folder_contents.skipped,
        fail_on=fails_on,
    )
    _write(options, document)
    shallow = ""
    if commits is not None:
        shallow = _warn_of_missing(str(options.git), document.series, commits.places)
    if document.failed_on:
        print_notice(f"--fail_on={','.join(fails_on)}: {blocks.history_answers(document)[0].text}")
        return ExitCode.REGRESSION
    unsure = defects or (shallow and fails_on)
    return ExitCode.INCONCLUSIVE if unsure else ExitCode.OK


def load_commits(folder: str | None) -> CommitGraph | None:
    """The commits of the repository that --git names; None without the flag."""
    try:
        return None if folder is None else CommitGraph(folder)
    except GitError as error:
        raise FlagError("git", str(folder), str(error)) from None


def _warn_of_missing(folder: str, trends: Sequence[Trend], order: Mapping[str, int]) -> str:
    """Prints a warning if the repository of --git lacks measured commits. Returns why, or ""."""
    commits = {point.runs[0].commit for history in trends for point in history.series.points} - {""}
    missing = len(commits - order.keys())
    why = why_commit_is_missing(folder) if missing else ""
    if missing:
        of = f"{missing} of {count_text(len(commits), 'measured commit', 'measured commits')}"
        print_warning(f"--git={folder} lacks {of}: {why or 'commits are sorted by time'}", "order")
    return why


def _check_measured(folder: Path, folder_contents: Contents, metric: Metric) -> None:
    """Raises UsageError if no measurement in the folder contains the metric."""
    there = {entry.configuration.kind for entry in folder_contents.entries}
    if there.intersection(metric.kinds):
        return
    if "run" in metric.kinds:
        hint = "cnnbench run --result_json=FILE writes them"
        if there:
            hint = "--metric=bus_bandwidth follows the all-reduces that there are"
        raise UsageError(f"{folder}: no run records; {hint}")
    hint = "cnnbench allreduce --result_json=FILE writes them"
    raise UsageError(f"{folder}: no all-reduce measurements with {metric.name}; {hint}")


def _parse_since(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        since = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise FlagError("since", text, "must be a day or time, as in 2026-11-20") from None
    return since if since.tzinfo else since.replace(tzinfo=timezone.utc)


def check_commit_url(url: str) -> None:
    """Checks the value of --commit_url. FlagError if it is not an address with {commit}."""
    if url and not (_COMMIT_URL.fullmatch(url) and "{commit}" in url):
        example = "https://github.com/OWNER/REPO/commit/{commit}"
        raise FlagError("commit_url", url, f"must be an address with {{commit}}, as in {example}")


def _check_output_flags(options: HistoryFlags, folder: str) -> None:
    url = options.commit_url
    check_commit_url(url)
    if url and Path(options.plot or "").suffix.lower() not in blocks.DOCUMENTS:
        pages = " or ".join(blocks.DOCUMENTS)
        raise FlagError("commit_url", url, f"needs --plot=FILE with {pages}")
    outputs = [
        OutputFile("output", options.output),
        OutputFile("plot", options.plot, blocks.SUFFIXES),
    ]
    check_outputs(outputs, (folder, *rules_paths(options.rules), *options.plugin))


def _select_series(
    options: HistoryFlags,
    folder_contents: Contents,
    metric: Metric,
    since: datetime | None,
    commits: CommitGraph | None,
) -> tuple[TimeSeries, ...]:
    wanted = {name: getattr(options, name) for name in ("model", "configuration", "machine")}
    selection = Selection(**wanted, since=since)
    order = None if commits is None else commits.places
    series = all_series(
        folder_contents.entries, metric, by=options.by, selection=selection, order=order
    )
    if not series:
        selected = {name: value for name, value in (*wanted.items(), ("since", since)) if value}
        _raise_empty(options, selected, folder_contents, metric)
    return series


def _raise_empty(
    options: HistoryFlags, selected: Mapping[str, Any], folder_contents: Contents, metric: Metric
) -> None:
    """Raises an error that names the flags that exclude all measurements."""
    there = sum(entry.configuration.kind in metric.kinds for entry in folder_contents.entries)
    if not there:
        return
    nothing = f"matches none of {there} {'runs' if 'run' in metric.kinds else 'all-reduces'}"
    for name, value in selected.items():
        if not all_series(folder_contents.entries, metric, selection=Selection(**{name: value})):
            raise FlagError(name, getattr(options, name), nothing)
    words = " ".join(f"--{name}={getattr(options, name)}" for name in selected)
    raise UsageError(f"{words}: {nothing}")


def _write(options: HistoryFlags, document: HistoryDocument) -> None:
    if options.format == "table":
        text = blocks.terminal_text(document, options.last)
    elif options.format == "csv":
        text = page.csv_text(document)
    elif options.format == "json":
        text = document.to_json()
    else:
        text = export_with_notice(page.history_metrics(document), options.format)
    write_or_print_output(options.output, text)
    if options.plot is not None:
        url = options.commit_url or commit_url_template(options.git)
        content = blocks.render(options.plot, document, url, ProgressLine())
        write_bytes("plot", options.plot, content)
