"""Sides whose processes are small programs that write records."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cnnbench.ab.side import Side
from cnnbench.params import Params
from cnnbench.record import Batch, Placement, RunRecord
from cnnbench.record_codec import encode


@pytest.fixture(scope="session")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A program to name as a side's Python."""
    path = tmp_path_factory.mktemp("interpreter") / "python"
    source = Path(__file__).with_name("fake_python.py").read_text(encoding="utf-8")
    path.write_text(f"#!{sys.executable} -IS\n{source}", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The record that fake processes fill in."""
    record = RunRecord(
        run_id="0",
        started_at="2026-11-20T00:00:00+00:00",
        status="ok",
        command=("cnnbench",),
        config=encode(Params(model="lenet").as_dict()) | {"batch_size": 8, "device": "cpu"},
        placement=Placement(
            device="cpu",
            devices=("/device:CPU:0",),
            num_towers=1,
            num_workers=1,
            variable_update="parameter_server",
        ),
        batch=Batch(per_device=8, global_=8),
        step_seconds=(0.08,) * 3,
        environment={"cpu_model": "Fast CPU"},
    )
    path = tmp_path_factory.mktemp("template") / "template.json"
    path.write_text(record.to_json(), encoding="ascii")
    return str(path)


@pytest.fixture
def fake(template: str) -> Callable[..., str]:
    """What FAKE must hold for a behaviour."""
    return lambda **say: json.dumps({"template": template, "parent": os.getpid(), **say})


@pytest.fixture
def side(interpreter: str, fake: Callable[..., str]) -> Callable[..., Side]:
    """A side of a behaviour."""

    def make(*flags: str, **say: object) -> Side:
        return Side(flags=flags, own=flags, python=interpreter, variables={"FAKE": fake(**say)})

    return make
