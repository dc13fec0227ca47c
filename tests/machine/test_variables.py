"""Only variables that change speed, and never a secret."""

from __future__ import annotations

import pytest

from cnnbench.machine.host import Host
from cnnbench.machine.variables import speed_variables


def facts(**environ):
    return speed_variables(Host(environ=environ))


@pytest.mark.parametrize(
    "name",
    [
        "TF_ENABLE_ONEDNN_OPTS",
        "TF_XLA_FLAGS",
        "TF_GPU_THREAD_MODE",
        "XLA_FLAGS",
        "OMP_NUM_THREADS",
        "KMP_BLOCKTIME",
        "CUDA_VISIBLE_DEVICES",
        "NVIDIA_TF32_OVERRIDE",
        "NCCL_ALGO",
        "LD_PRELOAD",
    ],
)
def test_what_changes_speed_is_a_fact(name):
    assert facts(**{name: "1"}) == {f"env_{name}": "1"}


@pytest.mark.parametrize(
    "name",
    [
        "HOME",
        "AWS_SECRET_ACCESS_KEY",
        "TF_VAR_db_password",
        "TF_TOKEN_app_terraform_io",
        "NVIDIA_API_KEY",
        "NCCL_SECRET_KEY",
        "OMP_AUTH",
        "TF_USE_TOKEN",
    ],
)
def test_everything_else_stays_out(name):
    assert facts(**{name: "hunter2"}) == {}


def test_values_are_one_line_and_short():
    found = facts(XLA_FLAGS="--a\n  --b", OMP_PLACES="x" * 5000)
    assert found["env_XLA_FLAGS"] == "--a --b"
    assert len(found["env_OMP_PLACES"]) == 1000
