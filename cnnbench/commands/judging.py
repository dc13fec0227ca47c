"""The flags and the output that `cnnbench compare` and `cnnbench ab` share."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cnnbench.errors import FlagError
from cnnbench.flags.declare import flag, specs_of
from cnnbench.text.terminal import LineWriter

if TYPE_CHECKING:
    from cnnbench.compare import Comparison, Loaded, Policy
    from cnnbench.metrics.measurement import Measurement

_FORMATS = ("table", "markdown", "json", "junit", "github")
_METRICS = ("throughput", "memory", "startup", "accuracy")


@dataclass(frozen=True, kw_only=True)
class JudgingFlags:
    """How verdicts are formed and where they go."""

    threshold: float | None = flag(
        None, "Smallest change of throughput that counts, in per cent.", minimum=0.0, below=100.0
    )
    alpha: float | None = flag(
        None,
        "Two-sided level of the tests of throughput, all configurations together.",
        above=0.0,
        below=1.0,
    )
    metrics: str = flag(
        ",".join(_METRICS), "What to judge; the first is what the comparison is about."
    )
    allow_different: str = flag(
        "", "Facts, groups of facts or patterns that may differ, comma-separated."
    )
    baseline_aa: str | None = flag(None, "Runs of an A/A measurement, to take the spread from.")
    format: str = flag("table", "What to print.", choices=_FORMATS)
    output: str | None = flag(None, "Write to this file, and the table to stdout.")


_SPECS = {spec.name: spec for spec in specs_of(JudgingFlags)}


@dataclass(frozen=True, kw_only=True)
class Judging:
    """What `JudgingFlags` come to.

    Attributes:
      threshold: in per cent, None for the policy's own.
      alpha: level, None for the policy's own.
      metrics: names; the first is what it is about.
      allow_different: facts, groups and patterns.
      baseline_aa: path of A/A runs, or None.
      format: of what is printed.
      output: file that takes the format in place of stdout, or None.
    """

    threshold: float | None
    alpha: float | None
    metrics: tuple[str, ...]
    allow_different: tuple[str, ...]
    baseline_aa: str | None
    format: str
    output: str | None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Judging:
        """Checks the flags that were given, the output file's place included.

        Raises:
          FlagError: a value that cannot be used.
        """
        values = {name: given.get(name, spec.default) for name, spec in _SPECS.items()}
        _SPECS["format"].check(values["format"])
        metrics = _metrics(values["metrics"])
        if values["output"] is not None:
            from cnnbench.records.files import resolve_output

            resolve_output("output", values["output"])
        return cls(
            threshold=values["threshold"],
            alpha=values["alpha"],
            metrics=metrics,
            allow_different=split_names(values["allow_different"]),
            baseline_aa=values["baseline_aa"],
            format=values["format"],
            output=values["output"],
        )

    @property
    def policy(self) -> Policy:
        """The constants; imported late, so that wrong flags are refused at once."""
        from cnnbench.compare import Policy

        policy = Policy()
        if self.threshold is not None:
            policy = policy.replace(threshold=self.threshold / 100)
        if self.alpha is not None:
            policy = policy.replace(alpha=self.alpha)
        return policy

    def load_aa(self, reductions: bool = True) -> Loaded | None:
        """The A/A runs; None if there are none to take.

        Args:
          reductions: all-reduces alone will do.

        Raises:
          FlagError: no such files.
        """
        if self.baseline_aa is None:
            return None
        from cnnbench.records.load import PathError

        try:
            return load(self.baseline_aa, reductions)
        except PathError as error:
            raise FlagError("baseline_aa", error.path, error.reason) from None

    def check_facts(self, measured: Iterable[Measurement]) -> None:
        """Refuses names of facts that nobody knows; see the function.

        Raises:
          FlagError: names one.
        """
        check_facts(self.allow_different, measured)

    def write(self, comparison: Comparison) -> None:
        """Prints the comparison, or writes it to the file and prints the table.

        Raises:
          BenchmarkError: the file can no longer be written.
        """
        from cnnbench.records.files import write_text
        from cnnbench.report.renderers import render
        from cnnbench.report.renderers.terminal import render as table
        from cnnbench.report.renderers.terminal import wants_colour

        format = self.format
        if self.output is not None:
            write_text("output", self.output, render(comparison, format))
            format = "table"
        if format == "table":
            text = table(comparison, wants_colour(sys.stdout))
        else:
            text = render(comparison, format)
        LineWriter(sys.stdout).lines([text.removesuffix("\n")])


def load(path: str, reductions: bool = True) -> Loaded:
    """The records of one side.

    Args:
      path: file, folder or pattern.
      reductions: all-reduces alone will do.

    Raises:
      PathError: no such path, or nothing in it that was meant to be a record.
    """
    from cnnbench.compare import load_records
    from cnnbench.records.load import PathError

    loaded = load_records([path])
    wanted = loaded.everything if reductions else loaded.records
    if not wanted and not loaded.defects:
        raise PathError(path, "no run records; cnnbench run --result_json=FILE writes them")
    return loaded


def check_facts(names: Iterable[str], measured: Iterable[Measurement]) -> None:
    """Refuses names of facts that nobody knows: a typing error would allow nothing.

    Args:
      names: of --allow_different.
      measured: what may know facts that are in no table.

    Raises:
      FlagError: names one.
    """
    for name, close in unknown_facts(names, measured).items():
        hint = f"did you mean {close}?" if close else "cnnbench env names the facts"
        raise FlagError("allow_different", name, f"no such fact; {hint}")


def unknown_facts(names: Iterable[str], measured: Iterable[Measurement]) -> dict[str, str]:
    """Names that stand for no fact of these, no flag and no group, with the nearest one."""
    from cnnbench.compare.comparability import known_facts
    from cnnbench.flags import FLAGS
    from cnnbench.metrics.comparable_facts import FACTS, GROUPS, allowed

    flags = (spec.name for spec in FLAGS)
    known = sorted({*FACTS, *GROUPS, *flags, *known_facts(measured)})
    unknown = [name for name in names if not any(allowed(one, (name,)) for one in known)]
    return {name: next(iter(difflib.get_close_matches(name, known, n=1)), "") for name in unknown}


def _metrics(text: str) -> tuple[str, ...]:
    names = split_names(text)
    for name in names:
        if name not in _METRICS:
            raise FlagError("metrics", name, f"must be of {', '.join(_METRICS)}")
    if not names:
        raise FlagError("metrics", "", f"must name some of {', '.join(_METRICS)}")
    return tuple(dict.fromkeys(names))


def split_names(text: str) -> tuple[str, ...]:
    """The names of a list with commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())
