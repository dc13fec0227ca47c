"""Flags for verdicts, and output of verdicts, for `cnnbench compare`, `ab` and other commands."""

from __future__ import annotations

import sys
from collections import ChainMap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from cnnbench.base import plugins
from cnnbench.base.terminal import ProgressLine, print_notice, print_warning
from cnnbench.base.text import count_text, unknown_name_reason
from cnnbench.cli.commands import declare_output_flag, write_or_print_output
from cnnbench.errors import FlagError, PathError
from cnnbench.flags import flag, redeclare_flag, specs_of, split_comma_separated
from cnnbench.flags.groups.run import RunParams
from cnnbench.judge import report
from cnnbench.judge.compare import Comparison, Criteria, Loaded, Policy, SkippedFile, load_records
from cnnbench.judge.metrics.judged import DEFAULT_METRICS
from cnnbench.judge.metrics.policy import check_fail_on
from cnnbench.judge.metrics.rules import Rules
from cnnbench.judge.metrics.rules_file import FILE, PROJECT, load_rules, rules_paths
from cnnbench.judge.report.exports import ExportedMetric, comparison_metrics
from cnnbench.judge.report.renderers import FORMATS, render, terminal_text, wants_colour
from cnnbench.records.all_reduce import AllReduceRecord
from cnnbench.records.exports import EXPORTS
from cnnbench.records.files import OutputFile, check_outputs
from cnnbench.records.metric import METRICS, load_missing_metrics
from cnnbench.records.run import RunRecord
from cnnbench.records.subject import Subject


def declare_fail_on_flag(help: str, *words: str) -> Any:
    """Declares the flag --fail_on of a command. Its values: slower, faster, `words` and never."""
    return flag(None, help, choices=("slower", "faster", *words, "never"))


def parse_fail_on(words: Sequence[str] | None) -> tuple[str, ...] | None:
    """The verdicts for which --fail_on sets exit code 1; None if the flag is not given."""
    try:
        return None if words is None else check_fail_on(words)
    except ValueError as error:
        raise FlagError("fail_on", ",".join(words or ()), str(error)) from None


def declare_format_flag(formats: Iterable[str], help: str) -> Any:
    """Declares the flag --format: these formats and the export formats; see `check_format`."""
    choices: ChainMap[str, Any] = ChainMap(EXPORTS, dict.fromkeys(formats))
    return flag("table", help, choices=choices, checked_late=True)


def check_format(flags: type, format: str) -> None:
    """Checks the value of --format, after plug-ins have been loaded. Raises FlagError if it is
    unknown. `flags` is the dataclass with the flag.
    """
    (spec,) = (spec for spec in specs_of(flags) if spec.name == "format")
    if format not in spec.choices:
        EXPORTS.load_packages()
    spec.check(format)


@dataclass(frozen=True, kw_only=True)
class JudgingFlags:
    """Flags for verdicts: thresholds, metrics, rules, and the format of the output."""

    threshold: float | None = flag(
        None,
        "Smallest relevant change in per cent, for throughput and other metrics without a "
        "separate threshold; 3 if not given.",
        minimum=0.0,
        below=1000.0,
    )
    alpha: float | None = flag(
        None,
        "Two-sided significance level of the tests of throughput, or of all metrics in --metrics "
        "together, for all configurations of runs and all-reduces together; 0.04 if not given. "
        "Other metrics, and a single metric with a separate threshold, have the level 0.01.",
        above=0.0,
        below=1.0,
    )
    plugin: tuple[str, ...] = redeclare_flag(RunParams, "plugin")
    metrics: str | None = flag(
        None,
        "Metrics to judge, comma-separated, in any order. If a metric got worse, the exit code "
        "is 1. If a metric is undecided or was not measured, the exit code is 3. If not given: "
        f"{','.join(DEFAULT_METRICS)}. In this case, startup does not change the exit code, and "
        "memory and accuracy change it only if they got worse. For all-reduces, throughput is "
        "the bus bandwidth, and startup is the time to build the reduction. cnnbench docs "
        "metrics lists all metrics of runs, such as cpu_time and step_p99_seconds.",
        known=lambda: METRICS,
    )
    allow_different: str = flag(
        "",
        "What may differ between the runs, comma-separated: flags, recorded properties of the "
        "environment, patterns such as env_TF_*, or groups: tensorflow, machine, gpu, model, "
        "environment_variables.",
    )
    allow_changed_work: bool = flag(
        False,
        "Different FLOPs, parameters or batch sizes of a network are shown, but do not count as a "
        "regression.",
    )
    fail_on: tuple[str, ...] | None = declare_fail_on_flag(
        "What sets exit code 1, comma-separated; slower,changed if not given, without changed if "
        "--allow_changed_work is given. The other exit codes stay.",
        "changed",
    )
    rules: str | None = flag(
        None,
        "Rules for configurations and metrics: a TOML file, COMMIT:FILE, or none. If not given: "
        f"{FILE} in the current folder, otherwise [tool.cnnbench] in {PROJECT} (cnnbench docs "
        "rules).",
    )
    accept: str | None = flag(
        None,
        "Accept all regressions of NEW, for this reason: they are shown, but do not set exit code "
        "1. A CI workflow gives this flag if a pull request has a label (cnnbench docs ci).",
    )
    format: str = declare_format_flag(
        (*FORMATS, "html"),
        "What to print. If not given, the ending of --output names the format: .html, .md, .json "
        "or .xml (junit).",
    )
    output: str | None = declare_output_flag(
        "Write the output to this file; the table goes to stdout."
    )

    def check_values(self, inputs: Iterable[str] = ()) -> None:
        """Raises FlagError for unknown metrics, an invalid --fail_on, or an unwritable output."""
        if "changed" in (parse_fail_on(self.fail_on) or ()) and self.allow_changed_work:
            reason = "contradicts --allow_changed_work; leave out one of them"
            raise FlagError("fail_on", ",".join(self.fail_on or ()), reason)
        plugins.load_plugins_of_flags(vars(self))
        check_format(JudgingFlags, self.format)
        names = () if self.metrics is None else split_comma_separated(self.metrics) or ("",)
        load_missing_metrics(names, METRICS)
        for name in names:
            if name not in METRICS:
                reason = unknown_name_reason(name, METRICS, "takes one or more of")
                raise FlagError("metrics", name, reason)
        check_outputs(
            [OutputFile("output", self.output)],
            (*inputs, *rules_paths(self.rules), *self.plugin),
        )

    @property
    def allowed_differences(self) -> tuple[str, ...]:
        """Names in --allow_different: recorded properties, groups and patterns that may differ."""
        return split_comma_separated(self.allow_different)

    @property
    def policy(self) -> Policy:
        """The decision thresholds from --threshold (which is in per cent) and --alpha."""
        share = None if self.threshold is None else self.threshold / 100
        changes = {"threshold": share, "alpha": self.alpha}
        changed = {name: value for name, value in changes.items() if value is not None}
        return Policy().replace(**changed)

    def criteria(self, rules: Rules | None = None) -> Criteria:
        """How records are judged, according to the flags and to rules: those of `load_rules`, or
        the `rules` with which an experiment began. --accept applies to both.
        """
        metrics = None
        if self.metrics is not None:
            asked = split_comma_separated(self.metrics)
            metrics = tuple(name for name in METRICS if name in asked)
        return Criteria(
            policy=self.policy,
            metrics=metrics,
            allow_different=self.allowed_differences,
            allow_changed_work=self.allow_changed_work,
            fail_on=parse_fail_on(self.fail_on),
            rules=self.load_rules() if rules is None else self._with_accept(rules),
        )

    def load_rules(self) -> Rules:
        """Reads the rules in --rules or in the current folder (docs/rules.md).

        If --threshold is given, the thresholds of the rules are removed.
        """
        rules = load_rules(self.rules)
        return self._with_accept(rules if self.threshold is None else rules.without_overridden())

    def _with_accept(self, rules: Rules) -> Rules:
        """Returns the rules with the acceptance in --accept, if any."""
        return rules if self.accept is None else rules.accepting_all(self.accept)

    def write_comparison(
        self, comparison: Comparison, allreduces: Sequence[AllReduceRecord] = ()
    ) -> None:
        """Prints the comparison. With --output, writes it to the file and prints the table.

        `allreduces` are the compared records of all-reduces, which a page shows. A comparison
        contains the compared records of runs, but only single rows of all-reduces.
        """
        table = partial(terminal_text, comparison, wants_colour(sys.stdout))
        if self.format == "table" and self.output is None:
            text = table()
        elif self.format in EXPORTS:
            text = export_with_notice(comparison_metrics(comparison), self.format)
        elif self.format == "html":
            text = _html_page(comparison, allreduces)
        else:
            text = render(comparison, self.format)
        write_or_print_output(self.output, text, table)


def _html_page(comparison: Comparison, allreduces: Sequence[AllReduceRecord]) -> str:
    """The report of the compared records as an HTML page."""
    runs = {
        run.run_id: run
        for entry in comparison.entries
        for run in entry.runs
        if isinstance(run, RunRecord)
    }
    loaded = Loaded(tuple(runs.values()), tuple(comparison.skipped), tuple(allreduces))
    # Without runs, the title would be about all-reduces in general.
    title = "" if runs else f"{comparison.new_label} against {comparison.base_label}"
    page = report.build(report.gather(loaded, comparison=comparison), title)
    return report.render(page, "html", ProgressLine())


def load_records_of_side(path: str) -> Loaded:
    """Reads the records of BASE or of NEW from a file, a folder or a pattern.

    Raises PathError if the path does not exist, or contains nothing that looks like a record.
    """
    loaded = load_records([path])
    if not loaded.all_records and not loaded.defects:
        raise PathError(path, "no run records; cnnbench run --result_json=FILE writes them")
    return loaded


def warn_of_skipped_files(skipped: Iterable[SkippedFile]) -> None:
    """Lists skipped files on stderr: ``cnnbench: warning: skipped ...``."""
    for file in skipped:
        print_warning(f"skipped {file}", "skipped")


def warn_of_unknown_commits(subjects: Iterable[Subject | None]) -> None:
    """Prints a warning with the number of measurements whose commit is unknown."""
    unknown = [subject.unknown for subject in subjects if subject is not None and subject.unknown]
    if unknown:
        number = count_text(len(unknown), "measurement", "measurements")
        text = f"the commit of {number} is unknown, and may be several: {unknown[0]}"
        print_warning(text, "commit")


def export_with_notice(figures: Sequence[ExportedMetric], format: str) -> str:
    """Writes values in the format of another program. Prints what the format cannot contain."""
    text, left_out = EXPORTS[format](figures)
    if left_out:
        print_notice(f"--format={format}: {left_out}")
    return text
