"""Flags and output shared by `cnnbench compare` and `cnnbench ab`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cnnbench.base.text.terminal import LineWriter, print_notice, print_warning
from cnnbench.errors import FlagError, PathError
from cnnbench.flags.declare import flag, specs_of, words
from cnnbench.judge.compare import Comparison, Loaded, Policy, SkippedFile, load_records
from cnnbench.judge.metrics.registry import DEFAULT_METRICS, METRICS
from cnnbench.judge.report.exports import FORMATS as EXPORTS
from cnnbench.judge.report.exports import Figure, of_comparison
from cnnbench.judge.report.renderers import render
from cnnbench.judge.report.renderers.terminal import render as table
from cnnbench.judge.report.renderers.terminal import wants_colour
from cnnbench.records.files import Output, check_outputs, write_text

_FORMATS = ("table", "markdown", "json", "junit", "github", *EXPORTS)


@dataclass(frozen=True, kw_only=True)
class JudgingFlags:
    """How verdicts are formed and where they go, by flag."""

    threshold: float | None = flag(
        None,
        "Smallest change of throughput and cpu_time that counts, in per cent; 3 if not given.",
        minimum=0.0,
        below=100.0,
    )
    alpha: float | None = flag(
        None,
        "Two-sided level of the tests of throughput and cpu_time, all configurations together, of "
        "runs and of all-reduces; 0.04 if not given.",
        above=0.0,
        below=1.0,
    )
    metrics: str = flag(
        ",".join(DEFAULT_METRICS),
        "What to judge, comma-separated; the first is what the comparison is about. Of "
        "all-reduces throughput is the bus bandwidth, startup the time to build. cpu_time, the CPU "
        "time of a step, is judged only where it is named.",
        known=lambda: METRICS,
    )
    allow_different: str = flag(
        "",
        "Facts that may differ, comma-separated: a flag, a fact of the environment, a pattern "
        "such as env_TF_*, or a group: tensorflow, machine, gpu, model, environment_variables.",
    )
    allow_changed_work: bool = flag(
        False,
        "A network of other FLOPs or parameters, or another batch, is shown and is no regression.",
    )
    baseline_aa: str | None = flag(
        None, "Runs of an A/A measurement; their spread raises the threshold.", path="folder"
    )
    format: str = flag("table", "What to print.", choices=_FORMATS)
    output: str | None = flag(
        None, "Write that to this file; the table goes to stdout.", path="file"
    )

    def check(self, inputs: Iterable[str | None] = ()) -> None:
        """Refuses unknown metrics, and an output that cannot be written."""
        for name in self.metric_names or ("",):
            if name not in METRICS:
                raise FlagError("metrics", name, f"must be some of {', '.join(METRICS)}")
        if self.output is not None:
            kind = {"table": "table of comparison", "json": "comparison"}.get(self.format)
            read = (*inputs, self.baseline_aa)
            check_outputs([Output("output", self.output, kind or self.format)], read)

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The metrics; the comparison is about the first."""
        return words(self.metrics)

    @property
    def allowed(self) -> tuple[str, ...]:
        """Facts, groups and patterns that may differ."""
        return words(self.allow_different)

    @property
    def policy(self) -> Policy:
        """The constants of the tests."""
        return policy_of(self.threshold, self.alpha)

    def load_aa(self, reductions: bool = True) -> Loaded | None:
        """The A/A runs, None without --baseline_aa; `reductions` as in `load`."""
        if self.baseline_aa is None:
            return None

        try:
            return load(self.baseline_aa, reductions)
        except PathError as error:
            raise FlagError("baseline_aa", error.path, error.reason) from None

    def write(self, comparison: Comparison) -> None:
        """Prints the comparison, or writes it to the file and prints the table."""
        format = self.format
        if self.output is not None:
            write_text("output", self.output, _render(comparison, format))
            format = "table"
        if format == "table":
            text = table(comparison, wants_colour(sys.stdout))
        else:
            text = _render(comparison, format)
        LineWriter(sys.stdout).lines([text.removesuffix("\n")])


def _render(comparison: Comparison, format: str) -> str:
    """The comparison as text; what a format cannot express is reported on stderr."""
    if format not in EXPORTS:
        return render(comparison, format)
    return exported(of_comparison(comparison), format)


JUDGING = specs_of(JudgingFlags)


def policy_of(threshold: float | None, alpha: float | None) -> Policy:
    """The constants of the tests, as flags change them; the threshold is in per cent."""
    policy = Policy()
    if threshold is not None:
        policy = policy.replace(threshold=threshold / 100)
    if alpha is not None:
        policy = policy.replace(alpha=alpha)
    return policy


def load(path: str, reductions: bool = True) -> Loaded:
    """The records of one side; `reductions`: whether all-reduces alone are enough.

    PathError if there is no such path, or nothing in it that was meant to be a record.
    """
    loaded = load_records([path])
    wanted = loaded.everything if reductions else loaded.records
    if not wanted and not loaded.defects:
        raise PathError(path, "no run records; cnnbench run --result_json=FILE writes them")
    return loaded


def warn_of_skipped(skipped: Iterable[SkippedFile]) -> None:
    """Names files that gave no record on stderr: ``cnnbench: warning: skipped ...``."""
    for one in skipped:
        print_warning(f"skipped {one}")


def exported(figures: Sequence[Figure], format: str) -> str:
    """Values in the format of another program; what it cannot express is reported on stderr."""
    text, left_out = EXPORTS[format](figures)
    if left_out:
        print_notice(f"--format={format}: {left_out}")
    return text
