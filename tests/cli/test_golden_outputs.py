"""Outputs of commands against files that were looked at; UPDATE_GOLDEN=1 rewrites them.

Those of runs, of `compare`, `history` and `report` stand beside the tests of these parts.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from golden import golden
from step_profiles import write_sides

GOLDEN = Path(__file__).parent / "golden"
COMMANDS = {
    "models": ("models",),
    "explain": ("explain", "a.json", "b.json", "--rows=5"),
    "sweep": ("sweep", "smoke", "--list"),
}


@pytest.fixture
def folder(lenet_runs, tmp_path, monkeypatch):
    """Works in a folder with profiles of A, and of B whose conv1 has twice the work."""
    write_sides(lenet_runs(), tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CNNBENCH_CIFAR10", raising=False)


@pytest.mark.usefixtures("folder", "own_registry")
@pytest.mark.parametrize("name", COMMANDS)
def test_output(name, call):
    out = call(*COMMANDS[name]).out
    assert out == golden(GOLDEN / f"{name}.txt", out)
