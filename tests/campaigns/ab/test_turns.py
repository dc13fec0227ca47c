"""Which sides can step in turn."""

from __future__ import annotations

import json

import pytest

from cnnbench.campaigns.ab import turns
from cnnbench.campaigns.ab.flags import print_answer
from cnnbench.campaigns.ab.side import Side, SideFlags
from cnnbench.flags import Params
from cnnbench.machine.cpu import Memory
from cnnbench.run.driver.plan import make_plan

GIB = 2**30


@pytest.fixture(autouse=True)
def room(monkeypatch):
    """A machine with enough memory."""
    monkeypatch.setattr(turns, "main_memory", lambda: Memory(total=64 * GIB, available=60 * GIB))
    monkeypatch.setattr(
        turns, "gpu_memory", lambda *flags: Memory(total=64 * GIB, available=3 * GIB)
    )


def obstacle(data_dir=None, **flags):
    params = Params(**{"model": "lenet", "device": "cpu", **flags})
    return turns.obstacle(params.replace(data_dir=data_dir), make_plan(params))


def test_a_run_that_can():
    assert obstacle() is None
    assert obstacle(forward_only=True) is None
    assert obstacle(device="gpu", allow_growth=True) is None


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ({"worker_hosts": "a:1,b:2", "job_name": "worker"}, "several processes"),
        ({"input_only": True}, "steps that can wait"),
        ({"data_dir": "/data"}, "read ahead"),
        ({"device": "gpu"}, "--allow_growth"),
        ({"device": "gpu", "allow_growth": True, "batch_size": 50_000}, "and 3 GiB is free"),
    ],
)
def test_runs_that_cannot(flags, why):
    assert why in obstacle(**flags)


def test_the_answer_about_flags_says_it(capsys):
    print_answer("null", "--model=lenet", "--device=gpu")
    assert "--allow_growth" in json.loads(capsys.readouterr().out.splitlines()[-1])["no_turns"]


@pytest.mark.parametrize("place", ["run/runtime", "runtime"])
def test_checkouts_of_either_layout_can_step_in_turn(tmp_path, place):
    package = tmp_path / "cnnbench"
    (package / place).mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / place / "turns.py").touch()
    assert turns.sides_obstacle({"a": Side(), "b": Side(checkout=tmp_path)}, {}) is None


def test_another_cnnbench_is_asked(tmp_path):
    known = {"a": SideFlags(), "b": SideFlags()}
    (tmp_path / "cnnbench").mkdir()
    (tmp_path / "cnnbench" / "__init__.py").touch()
    old = Side(checkout=tmp_path)
    assert turns.sides_obstacle({"a": Side(), "b": Side()}, known) is None
    found = turns.sides_obstacle({"a": Side(), "b": old}, known)
    assert found == "side B: its cnnbench is of a version that cannot"
    known["a"] = SideFlags(no_turns="it is so")
    assert turns.sides_obstacle({"a": Side(), "b": Side()}, known) == "side A: it is so"
