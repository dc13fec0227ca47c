"""Which sides can step in turn."""

from __future__ import annotations

import json

import pytest

from cnnbench.campaigns.ab import flags as turns
from cnnbench.campaigns.ab.side import Side
from cnnbench.campaigns.processes.commands import Resolved
from cnnbench.flags import Params
from cnnbench.machine.cpu import Memory
from cnnbench.run.driver.plan import make_plan

GIB = 2**30


@pytest.fixture(autouse=True)
def room(monkeypatch, made_up_machine):
    """A machine with enough memory."""
    kilobytes = f"MemTotal: {64 << 20} kB\nMemAvailable: {60 << 20} kB\n"
    (made_up_machine / "proc/meminfo").write_text(kilobytes)
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
    turns.print_answer("null", "--model=lenet", "--device=gpu")
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert "--allow_growth" in answer["resolved"]["no_turns"]


@pytest.mark.parametrize("place", ["run/runtime", "runtime"])
def test_checkouts_of_either_layout_can_step_in_turn(tmp_path, place):
    package = tmp_path / "cnnbench"
    (package / place).mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / place / "turns.py").touch()
    assert turns.sides_obstacle({"a": Side(), "b": Side(checkout=tmp_path)}) is None


def test_another_cnnbench_is_asked(tmp_path):
    (tmp_path / "cnnbench").mkdir()
    (tmp_path / "cnnbench" / "__init__.py").touch()
    old = Side(checkout=tmp_path)
    assert turns.sides_obstacle({"a": Side(), "b": Side()}) is None
    found = turns.sides_obstacle({"a": Side(), "b": old})
    assert found == "side B: its cnnbench is of a version that cannot"
    unable = Side(resolved=Resolved(no_turns="it is so"))
    assert turns.sides_obstacle({"a": unable, "b": Side()}) == "side A: it is so"
