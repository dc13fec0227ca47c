"""The two tiers of tests, and tests that start without TensorFlow."""

from __future__ import annotations

import sys
from pathlib import Path

from forked import finished

ROOT = Path(__file__).parents[1]
LISTED = """
import sys
import pytest
status = pytest.main(["-q", "-n", "0", "-p", "no:cacheprovider", *sys.argv[1:]])
print("tensorflow" in sys.modules)
sys.exit(status)
"""


def _tests(*arguments: str) -> list[str]:
    """The lines that pytest prints in a process of its own, and whether it loaded TensorFlow."""
    done = finished([sys.executable, "-c", LISTED, *arguments], cwd=ROOT, seconds=280)
    return done.stdout.splitlines()


def test_tests_of_text_load_no_tensorflow() -> None:
    """Neither to be collected, nor, in those of a folder, to run."""
    folders = ("base", "campaigns", "flags", "judge", "machine", "plan", "records")
    assert _tests("--collect-only", *(f"tests/{name}" for name in folders))[-1] == "False"
    assert _tests("tests/judge/metrics")[-1] == "False"


def test_a_test_that_needs_it_has_eight_devices(cpu_devices: tuple[str, ...]) -> None:
    import tensorflow as tf

    devices = tf.config.list_logical_devices("CPU")
    assert len(devices) == len(cpu_devices) == 8
