"""``cnnbench compare BASE NEW``: did it get slower?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from cnnbench.commands import warn_of_skipped
from cnnbench.commands.judging import Judging, JudgingFlags, load
from cnnbench.errors import UsageError
from cnnbench.flags import parse_command
from cnnbench.flags.declare import flag, specs_of

if TYPE_CHECKING:
    from cnnbench.compare import Comparison


@dataclass(frozen=True, kw_only=True)
class _Flags:
    paired: bool = flag(False, "Compare run by run: pairs of cnnbench ab, else the i-th by start.")


_SPECS = (*specs_of(JudgingFlags), *specs_of(_Flags))

HELP = """\
Usage: cnnbench compare BASE NEW [FLAGS]

Compares saved records, configuration by configuration, one value per process. BASE and NEW
are each a record (--result_json), a folder with all *.json below it, or a quoted pattern. Runs
are judged by their throughput; of all-reduces (cnnbench allreduce) every row of the table is a
configuration of its own, judged by its bus bandwidth. docs/compare.md explains the verdicts:
faster, slower, same, inconclusive, not comparable, missing, failed. At least 4 runs per side
are needed; take turns between the sides when measuring (cnnbench ab does).

  --threshold=X          smallest change of throughput that counts, in per cent [3]
  --alpha=X              level of the tests of throughput, all configurations together; of runs
                         and of all-reduces [0.04]
  --baseline_aa=PATH     runs of an A/A measurement; their spread raises the threshold
  --[no]paired           compare run by run: pairs as cnnbench ab made them; of other records
                         the i-th of BASE with the i-th of NEW, by start
  --metrics=NAME,...     throughput,memory,startup,accuracy; the first is what it is about. Of
                         all-reduces throughput is the bus bandwidth, startup the time to build
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
    judging = Judging.of(given)
    comparison = _compare(arguments, judging, paired=given.get("paired", False))
    warn_of_skipped(comparison.skipped)
    judging.write(comparison)
    return comparison.exit_code


def _compare(sides: Sequence[str], judging: Judging, paired: bool) -> Comparison:
    from cnnbench.compare import compare_records
    from cnnbench.compare.reductions import measurements

    base, new = (load(path) for path in sides)
    aa = judging.load_aa()
    if judging.allow_different:
        judging.check_facts(chain(*measurements(base.everything, new.everything)))
    skipped = (*base.skipped, *new.skipped, *(() if aa is None else aa.skipped))
    return compare_records(
        base.everything,
        new.everything,
        judging.policy,
        metrics=judging.metrics,
        allow_different=judging.allow_different,
        aa=None if aa is None else aa.everything,
        paired=paired,
        base_label=sides[0],
        new_label=sides[1],
        skipped=tuple({one.path: one for one in skipped}.values()),
    )
