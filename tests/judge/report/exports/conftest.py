"""Runs as for comparisons, not those that tests of reports make."""

from __future__ import annotations

import pytest


@pytest.fixture
def runs(machine_runs):
    return machine_runs
