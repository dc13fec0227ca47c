"""Which all-reduce a run may ask for, and what runs of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cnnbench.errors import FlagError
from cnnbench.flags import Params, validate
from cnnbench.flags.groups.variable_update import running_all_reduce

FOUR = {"variable_update": "distributed_all_reduce", "num_gpus": 4, "device": "cpu"}
TWO = {"variable_update": "replicated", "num_gpus": 2}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"all_reduce_spec": "nccl"}, "character 1, 'nccl': nccl sums on GPUs only"),
        (
            {"all_reduce_spec": "copy:2048:nccl/xring", "all_reduce_group_size": 2},
            "character 11, 'nccl/xring': nccl sums on GPUs only",
        ),
        ({"all_reduce_spec": "copy/nccl", "all_reduce_group_size": 2}, "the first level only"),
        ({"all_reduce_spec": "copy/nccl", "device": "gpu"}, "the first level only"),
        ({"all_reduce_spec": "copy#2"}, "copy takes no shards"),
        ({"all_reduce_spec": "copy#2", "device": "auto"}, "copy takes no shards"),
        ({"all_reduce_spec": "collective#3"}, "one or two rings, and not 3"),
        ({"all_reduce_spec": "xring#5"}, "5 rings need as many devices in each process"),
        ({"all_reduce_spec": "pscpu#2", "device": "gpu"}, "2 shards need as many different"),
        ({"all_reduce_spec": "copy/psgpu#3", "all_reduce_group_size": 2}, "3 shards between 2 gr"),
        (
            {"all_reduce_spec": "hierarchical_copy", "network_topology": "gcp_v100"},
            "gcp_v100 is a topology of exactly 8 devices, and there are 4",
        ),
    ],
)
def test_specs_that_the_devices_cannot_take(flags, message):
    with pytest.raises(FlagError, match=r"^--all_reduce_spec=") as caught:
        validate(Params(**{**FOUR, **flags}))
    assert message in caught.value.reason
    assert caught.value.value == flags["all_reduce_spec"]


@pytest.mark.parametrize(
    "flags",
    [
        {"all_reduce_spec": "nccl", "device": "gpu"},
        {"all_reduce_spec": "nccl", "device": "auto"},
        {"all_reduce_spec": "pscpu#4", "device": "auto"},
        {"all_reduce_spec": "tree#9"},
        # Nothing is reduced, and nothing is wrong with that.
        {"all_reduce_spec": "nccl", "forward_only": True},
        {"all_reduce_spec": "nccl", "eval": True, "train_dir": "d"},
        {"all_reduce_spec": "nccl", "num_gpus": 1},
        {"all_reduce_spec": "nccl", "variable_update": "independent"},
        {
            "hierarchical_copy": True,
            "network_topology": "gcp_v100",
            "num_gpus": 8,
            "variable_update": "replicated",
        },
        # The topology is of a copy that the spec has replaced.
        {"hierarchical_copy": True, "network_topology": "gcp_v100", "all_reduce_spec": "xring"},
    ],
)
def test_specs_that_are_left_to_the_run(flags):
    validate(Params(**{**FOUR, **flags}))


def test_too_many_packs_are_named_where_there_are_any():
    with pytest.raises(FlagError, match="--gradient_repacking=501: must be at most 500 packs"):
        validate(Params(**TWO, gradient_repacking=501))
    validate(Params(**TWO, gradient_repacking=500))
    validate(Params(**TWO, gradient_repacking=501, forward_only=True))


def test_a_topology_that_does_not_fit_is_named():
    with pytest.raises(FlagError) as caught:
        validate(Params(**TWO, hierarchical_copy=True, network_topology="gcp_v100"))
    assert str(caught.value) == (
        "--network_topology=gcp_v100: gcp_v100 is a topology of exactly 8 devices, and there are 2"
    )


def test_a_mode_that_needs_a_spec_says_so():
    with pytest.raises(FlagError) as caught:
        validate(Params(variable_update="distributed_all_reduce"))
    assert str(caught.value) == (
        "--variable_update=distributed_all_reduce: needs --all_reduce_spec, such as "
        "--all_reduce_spec=xring"
    )


@pytest.mark.parametrize(
    ("flags", "running"),
    [
        (TWO, "copy"),
        ({**TWO, "hierarchical_copy": True}, "hierarchical_copy"),
        ({**TWO, "hierarchical_copy": True, "all_reduce_spec": "xring#2"}, "xring#2"),
        ({**FOUR, "all_reduce_spec": "copy:2048:pscpu/xring"}, "copy:2K:pscpu"),
        (
            {**FOUR, "all_reduce_spec": "pscpu/xring#2", "all_reduce_group_size": 2},
            "pscpu/xring#2",
        ),
        ({**FOUR, "all_reduce_spec": "pscpu/xring#2", "all_reduce_group_size": 1}, "xring#2"),
        ({**TWO, "num_gpus": 1}, None),
        ({**TWO, "forward_only": True}, None),
        ({**TWO, "eval": True, "train_dir": "d"}, None),
        ({**TWO, "variable_update": "independent"}, None),
        ({**TWO, "variable_update": "parameter_server", "all_reduce_spec": "xring"}, None),
    ],
)
def test_what_runs(flags, running):
    found = running_all_reduce(Params(**flags))
    assert (None if found is None else str(found)) == running


@pytest.mark.parametrize("command", ["run", "allreduce"])
def test_devices_are_thought_of_without_tensorflow(command):
    argv = [command, "--device=cpu", "--num_gpus=2", "--all_reduce_spec=nccl"]
    if command == "run":
        argv.append("--variable_update=replicated")
    code = (
        "import sys; from cnnbench.cli import main\n"
        f"status = main({argv})\n"
        "assert status == 2, status; assert 'tensorflow' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "nccl sums on GPUs only" in done.stderr
