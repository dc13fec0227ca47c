"""``cnnbench ab``: measure A and B alternately, and judge how B differs from A."""

from __future__ import annotations

from collections.abc import Sequence

from cnnbench.cli.commands.ab_flags import OF_ONE_EXPERIMENT, SECTIONS, SPECS, AbFlags
from cnnbench.cli.commands.ab_session import run_experiment
from cnnbench.cli.commands.command_lines import (
    flag_words,
    mask_variable_value,
    split_command_and_run_flags,
)
from cnnbench.errors import UsageError
from cnnbench.flags import flag_sections

_ABOUT = """\
Usage: cnnbench ab [--a=FLAGS] [--b=FLAGS] [FLAGS] [-- FLAGS OF BOTH A AND B]

Measures A and B in pairs of new processes, in random order within every pair, and judges whether B
is faster, slower, the same, not slower or inconclusive (cnnbench docs ab). It stops as soon as an
interim analysis has a clear verdict: after 8 pairs, 12, and so on up to --pairs. After a verdict of
slower or faster, it profiles A and B, and names the layers and causes of the difference (cnnbench
docs explain). If B may be the faster one, add --fail_on=slower,faster: otherwise it stops as soon
as B is certainly not slower.

  cnnbench ab --b=--precision=bf16 -- --model=lenet --device=cpu --batch_size=8
  cnnbench ab --a_python=old/bin/python --b_python=new/bin/python -- --model=resnet50
  cnnbench ab --a_checkout=main --b_checkout=. -- --plugin=bench/nets.py --model=ours
  cnnbench ab --resume --results=DIR --pairs=28
"""

_EXIT_CODES = """\
Flags, interpreters, code and variables that A and B define differently may always differ.

Exit codes: 0 no regression; 1 B is slower or computes something else (or what --fail_on names); 3
inconclusive or not comparable; 4 a process failed, or processes were killed twice in
a row; 2 wrong use; 130 interrupted: the change so far is printed without a verdict (continue with
--resume).
"""

HELP = (_ABOUT, tuple(flag_sections(AbFlags, SECTIONS).items()), _EXIT_CODES)


def main(argv: Sequence[str]) -> int:
    """Runs an experiment that compares A and B. If it raises UsageError, nothing has been run."""
    values, stray, common = split_command_and_run_flags(argv, SPECS, "ab ...")
    if stray:
        raise UsageError(
            f"stray argument {mask_variable_value(stray[0])!r}: put flags of both A and B "
            "after --, and flags of only one of them into --a or --b"
        )
    words = flag_words(values, SPECS, OF_ONE_EXPERIMENT)
    return run_experiment(values, common, ("ab", *words, "--", *common))
