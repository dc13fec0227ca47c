"""A flag that is neither refused nor without meaning must reach the program."""

import dataclasses
import re
from pathlib import Path

from cnnbench.flags import FLAGS
from cnnbench.optimizers.declared import OPTIMIZERS
from cnnbench.variable_mgr.aggregation.spec import AggregationSpec

ROOT = Path(__file__).parents[2]
PACKAGES = ("cnnbench", "models", "variable_mgr")
# Reading a flag for declarations, checks, notices or CSV columns has no effect on a run.
# Another command has flags of its own, some with equal names.
NOT_READERS = (
    ROOT / "cnnbench" / "flags",
    ROOT / "cnnbench" / "records" / "tables.py",
    ROOT / "cnnbench" / "lab" / "allreduce",
    ROOT / "cnnbench" / "cli" / "commands" / "allreduce.py",
)
# These modules use the flags of the job.
MAKE_JOB = (ROOT / "cnnbench" / "flags" / "cluster.py", ROOT / "cnnbench" / "flags" / "params.py")

NOT_READ = {
    "server_protocol": "there is one",
    "hierarchical_copy": "flags.reductions makes it an all-reduce, which the plan has",
    "variable_mgr_plugin": "flags.checks loads it, before --variable_update is checked",
    "result_label": "goes into the record as it is, for readers of records",
    "iters_per_step": "cnnbench allreduce has a flag of that name; a run says so",
}


def _read_anywhere():
    # AggregationSpec.of and optimizers read flags by names in data.
    names = {field.name for field in dataclasses.fields(AggregationSpec)}
    names |= {flag for optimizer in OPTIMIZERS.values() for flag in optimizer.flags}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            if path not in MAKE_JOB and any(path.is_relative_to(other) for other in NOT_READERS):
                continue
            # The input and the runtime get their flags as fields of the same names
            # (InputSpec.from_flags, Settings.of).
            holders = {"params", "_params", "flags"}
            if path in MAKE_JOB:
                holders |= {"self"}
            if path.is_relative_to(ROOT / "cnnbench" / "data"):
                holders |= {"spec", "_spec"}
            if path == ROOT / "cnnbench" / "run" / "runtime" / "tensorflow.py":
                holders |= {"settings"}
            text = path.read_text(encoding="utf-8")
            names |= set(re.findall(rf"\b(?:{'|'.join(holders)})\.(\w+)", text))
    return names


def test_every_flag_is_read():
    unread = {spec.name for spec in FLAGS} - _read_anywhere()
    assert unread == set(NOT_READ)
