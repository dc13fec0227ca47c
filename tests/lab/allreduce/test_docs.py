"""The commands in the documentation are ones that the program understands."""

import re
import shlex
from pathlib import Path

from cnnbench.flags import parse_flags
from cnnbench.flags.groups.allreduce import ALLREDUCE_FLAGS, params_of
from cnnbench.flags.groups.predict import PREDICT_FLAGS
from cnnbench.lab.allreduce.plan import make_plan

TEXT = (Path(__file__).parents[3] / "docs" / "all_reduce_benchmark.md").read_text("utf-8")
COMMANDS = re.findall(r"^cnnbench allreduce (.*)$", TEXT.replace("\\\n", " "), re.MULTILINE)


def test_every_command_can_be_planned():
    assert len(COMMANDS) >= 4
    for command in COMMANDS:
        given = parse_flags(shlex.split(command), ALLREDUCE_FLAGS)
        make_plan(params_of(given), tuple(given))


def test_every_flag_it_names_exists():
    known = {spec.name for spec in (*ALLREDUCE_FLAGS, *PREDICT_FLAGS)}
    known |= {"scenarios", "keep", "help"}  # of scripts/compare_peers
    known |= {"workers", "towers"}  # of cnnbench launch
    assert set(re.findall(r"--(\w+)", TEXT)) <= known
