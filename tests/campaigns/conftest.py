"""Stand-ins for the processes of campaigns: sides of experiments, and the runs of suites."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from cnnbench.campaigns.suite.entries import Suite, parse_suite
from cnnbench.campaigns.suite.nodes import load_yaml_file
from cnnbench.campaigns.sweep.plan import SweepPlan, plan_sweep
from cnnbench.records.run import Batch, RunRecord

FACTS = {"hostname": "here", "tensorflow_version": "2.21.0"}


@pytest.fixture(autouse=True)
def _quick_processes(quick_processes: None) -> None:
    """Stand-ins are forked."""


@pytest.fixture(scope="session")
def make_record(lenet_runs: type) -> Callable[..., RunRecord]:
    """Makes records of three steps of a batch of 4."""
    return functools.partial(
        lenet_runs(FACTS),
        batch=Batch(per_device=4, global_=4),
        step_seconds=(0.1, 0.1, 0.2),
        losses=(3.0, 2.0, 1.0),
    )


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    """Writes a suite; returns its path."""

    def write(text: str, name: str = "suite.yaml") -> str:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return str(path)

    return write


@pytest.fixture
def suite(write: Callable[[str], str]) -> Callable[[str], Suite]:
    """The checked suite in a text."""
    return lambda text: parse_suite(load_yaml_file(write(text)))


@pytest.fixture
def plan(suite: Callable[[str], Suite]) -> Callable[..., SweepPlan]:
    """The plan of the suite in a text."""
    return lambda text, *for_all, **more: plan_sweep(suite(text), FACTS, *for_all, **more)
