"""A flag that is neither refused nor without meaning must reach the program."""

import dataclasses
import re
from pathlib import Path

from cnnbench.base import plugins
from cnnbench.flags import FLAGS
from cnnbench.flags.groups.data import DataParams
from cnnbench.optimizers import OPTIMIZERS, SCHEDULES
from cnnbench.optimizers.clipping import CLIPPINGS
from cnnbench.records.endings import ENDINGS
from cnnbench.variable_mgr.packing import AggregationSpec

ROOT = Path(__file__).parents[2]
PACKAGES = ("cnnbench", "models", "variable_mgr")
# Reading a flag for declarations, checks, notices or CSV columns has no effect on a run.
# Another command has flags of its own, some with equal names.
NOT_READERS = (
    ROOT / "cnnbench" / "flags",
    ROOT / "cnnbench" / "plan" / "rules.py",
    ROOT / "cnnbench" / "lab" / "all_reduce",
    ROOT / "cnnbench" / "cli" / "commands" / "allreduce.py",
)

NOT_READ = {
    "server_protocol": "there is one",
    "use_fp16": "--precision has its value",
    "result_label": "goes into the record as it is, for readers of records",
    "iters_per_step": "cnnbench allreduce has a flag of that name; a run says so",
}


def _read_anywhere():
    # These read flags by names in data: AggregationSpec.from_flags, optimizers, schedules,
    # clippings and endings.
    # The input has the flags of data as attributes.
    names = {field.name for field in dataclasses.fields(DataParams)}
    names |= {field.name for field in dataclasses.fields(AggregationSpec)}
    names |= {*OPTIMIZERS.constants, *SCHEDULES.constants, *CLIPPINGS, *ENDINGS, plugins.FLAG}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            if any(path.is_relative_to(other) for other in NOT_READERS):
                continue
            text = path.read_text(encoding="utf-8")
            names |= set(re.findall(r"\b(?:params|flags|given|outputs)\.(\w+)", text))
    return names


def test_every_flag_is_read():
    unread = {spec.name for spec in FLAGS} - _read_anywhere()
    assert unread == set(NOT_READ)
