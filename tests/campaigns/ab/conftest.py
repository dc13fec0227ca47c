"""Sides whose processes are small programs that write records."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import pytest

from cnnbench.campaigns.ab.side import Side


@pytest.fixture(autouse=True)
def _quick_processes(quick_processes: None) -> None:
    """Sides are forked."""


@pytest.fixture
def side(fake_python: str) -> Callable[..., Side]:
    """A side of a behaviour, which fake_python.py tells of."""

    def make(*flags: str, **say: object) -> Side:
        fake = json.dumps({"parent": os.getpid(), **say})
        return Side(flags=flags, own=flags, python=fake_python, variables={"FAKE": fake})

    return make
