"""``cnnbench compare BASE NEW``: did it get slower?"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cnnbench.errors import BenchmarkError, FlagError, UsageError
from cnnbench.params import parse_command
from cnnbench.params.declaration import flag, specs_of
from cnnbench.terminal import LineWriter

if TYPE_CHECKING:
    from cnnbench.comparison import Comparison, Loaded, Policy
    from cnnbench.record import RunRecord

_FORMATS = ("table", "markdown", "json", "junit", "github")
_METRICS = ("throughput", "memory", "startup", "accuracy")


@dataclass(frozen=True, kw_only=True)
class _Flags:
    threshold: float | None = flag(
        None, "Smallest change of throughput that counts, in per cent.", minimum=0.0, below=100.0
    )
    alpha: float | None = flag(
        None, "Two-sided level of the tests over all configurations.", above=0.0, below=1.0
    )
    metrics: str = flag(
        ",".join(_METRICS), "What to judge; the first is what the comparison is about."
    )
    allow_different: str = flag(
        "", "Facts, groups of facts or patterns that may differ, comma-separated."
    )
    baseline_aa: str | None = flag(None, "Runs of an A/A measurement, to take the spread from.")
    paired: bool = flag(False, "Compare run by run: the i-th of both sides, by their start.")
    format: str = flag("table", "What to print.", choices=_FORMATS)
    output: str | None = flag(None, "Write to this file, and the table to stdout.")


_SPECS = specs_of(_Flags)

HELP = """\
Usage: cnnbench compare BASE NEW [FLAGS]

Compares saved run records, configuration by configuration, one value per process. BASE and
NEW are each a record (--result_json), a folder with all *.json below it, or a quoted pattern.
docs/compare.md explains the verdicts: faster, slower, same, inconclusive, not comparable,
missing, failed. At least 4 runs per side are needed; take turns between the sides when
measuring (cnnbench ab does).

  --threshold=X          smallest change of throughput that counts, in per cent [3]
  --alpha=X              level of the tests of throughput, all configurations together [0.04]
  --baseline_aa=PATH     runs of an A/A measurement; their spread raises the threshold
  --[no]paired           compare run by run, the i-th of BASE with the i-th of NEW, by start
  --metrics=NAME,...     throughput,memory,startup,accuracy; the first is what it is about
  --allow_different=X,.. facts that may differ: a flag, a fact of the environment, a pattern
                         such as env_TF_*, or a group: tensorflow, machine, gpu, model,
                         environment_variables
  --format=NAME          table, markdown, json, junit or github [table]
  --output=FILE          write to this file; the table goes to stdout

Exit codes: 0 no regression; 1 a regression, whatever else there is; 4 a run failed; 3 the
question is open: inconclusive, not comparable, missing on one side, or a faulty file was
skipped; 2 wrong use.
"""


def main(argv: Sequence[str]) -> int:
    """Compares and prints.

    Returns:
      The exit code that HELP explains.

    Raises:
      UsageError: wrong arguments, or a side without records.
    """
    given, arguments = parse_command(argv, _SPECS)
    if len(arguments) != 2:
        raise UsageError(
            f"cnnbench compare takes two arguments, BASE and NEW, not {len(arguments)}; "
            "quote patterns, so that the shell leaves them alone"
        )
    format, metrics = _format(given), _metrics(given)
    policy = _policy(given)
    output = given.get("output")
    if output is not None:
        from cnnbench.files import resolve_output

        resolve_output("output", output)
    comparison = _compare(arguments, given, policy, metrics)
    for one in comparison.skipped:
        print(f"cnnbench: warning: skipped {one}", file=sys.stderr)
    _write(comparison, format, output)
    return comparison.exit_code


def _format(given: dict[str, Any]) -> str:
    for spec in _SPECS:
        if spec.name == "format" and "format" in given:
            spec.check(given["format"])
    return str(given.get("format", "table"))


def _metrics(given: dict[str, Any]) -> tuple[str, ...]:
    names = _names(given.get("metrics", ",".join(_METRICS)))
    for name in names:
        if name not in _METRICS:
            raise FlagError("metrics", name, f"must be of {', '.join(_METRICS)}")
    if not names:
        raise FlagError("metrics", "", f"must name some of {', '.join(_METRICS)}")
    return tuple(dict.fromkeys(names))


def _policy(given: dict[str, Any]) -> Policy:
    from cnnbench.comparison import Policy

    policy = Policy()
    if given.get("threshold") is not None:
        policy = policy.replace(threshold=given["threshold"] / 100)
    if given.get("alpha") is not None:
        policy = policy.replace(alpha=given["alpha"])
    return policy


def _compare(
    sides: Sequence[str], given: dict[str, Any], policy: Policy, metrics: tuple[str, ...]
) -> Comparison:
    from cnnbench.comparison import compare_records

    base, new = (_load(path) for path in sides)
    aa = None if given.get("baseline_aa") is None else _load(given["baseline_aa"])
    allow_different = _names(given.get("allow_different", ""))
    _check_facts(allow_different, (*base.records, *new.records))
    skipped = (*base.skipped, *new.skipped, *(() if aa is None else aa.skipped))
    return compare_records(
        base.records,
        new.records,
        policy,
        metrics=metrics,
        allow_different=allow_different,
        aa=None if aa is None else aa.records,
        paired=given.get("paired", False),
        base_label=sides[0],
        new_label=sides[1],
        skipped=tuple({one.path: one for one in skipped}.values()),
    )


def _load(path: str) -> Loaded:
    from cnnbench.comparison import load_records

    loaded = load_records([path])
    if not loaded.records and not loaded.defects:
        raise UsageError(f"{path}: no run records; cnnbench run --result_json=FILE writes them")
    return loaded


def _check_facts(names: Sequence[str], records: Sequence[RunRecord]) -> None:
    """Refuses names of facts that nobody knows: a typing error would allow nothing."""
    from cnnbench.comparison.comparability import known_facts
    from cnnbench.comparison.facts import FACTS, GROUPS, allowed

    known = {*FACTS, *GROUPS, *known_facts(records)} if names else set()
    for name in names:
        if not any(allowed(one, (name,)) for one in known):
            close = difflib.get_close_matches(name, sorted(known), n=1)
            hint = f"did you mean {close[0]}?" if close else "cnnbench env names the facts"
            raise FlagError("allow_different", name, f"no such fact; {hint}")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _write(comparison: Comparison, format: str, output: str | None) -> None:
    from cnnbench.comparison import render
    from cnnbench.comparison.render.table import render as table
    from cnnbench.comparison.render.table import wants_colour
    from cnnbench.files import resolve_output, write_whole

    if output is not None:
        text = render(comparison, format)
        target = resolve_output("output", output)
        try:
            write_whole(target, text.encode("utf-8", "backslashreplace"))
        except OSError as error:
            raise BenchmarkError(f"{output}: cannot be written: {error.strerror}") from error
        format = "table"
    if format == "table":
        text = table(comparison, wants_colour(sys.stdout))
    else:
        text = render(comparison, format)
    LineWriter(sys.stdout).lines([text.removesuffix("\n")])
