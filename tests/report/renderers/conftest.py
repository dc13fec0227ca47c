"""Runs that never ran, with the facts of a machine."""

from __future__ import annotations

import pytest


@pytest.fixture
def runs(lenet_runs):
    return lenet_runs({"logical_cpus": 2, "tensorflow_version": "2.21.0", "git_commit": "a" * 40})
