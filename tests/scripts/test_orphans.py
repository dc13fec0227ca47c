"""Commands that are killed, and what of them runs on."""

from __future__ import annotations

import sys

import pytest
from orphans import KilledCommand

pytestmark = [pytest.mark.timeout(60), pytest.mark.slow]

STARTS = """
import subprocess, sys
subprocess.Popen([sys.executable, "-IS", "-c", {!r}], stdin=subprocess.PIPE).wait()
"""


def orphans(code: str) -> list[str]:
    """What a command leaves that starts a process with this code, and is killed."""
    words = (sys.executable, "-IS", "-c", STARTS.format(code))
    return KilledCommand("it", words, 2.0).find_orphans()


def test_a_process_that_runs_on_is_found(limits):
    limits(sys.modules["orphans"], _LINGER_SECONDS=0.2)
    (line,) = orphans("import time; time.sleep(600)")
    assert line.startswith("it, killed after 2.00 s: process ")


def test_a_process_that_ends_with_its_parent_is_none():
    assert orphans("import sys; sys.stdin.read()") == []


def test_cnnbench_leaves_no_process():
    assert KilledCommand.draw(0, 1).find_orphans() == []
