"""The two tiers of tests, and tests that start without TensorFlow."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from forked import finished

ROOT = Path(__file__).parents[1]
TESTED = """
import sys
import pytest
folders = ("base", "campaigns", "flags", "judge", "machine", "plan", "records")
runs = (
    ["--collect-only", *(f"tests/{name}" for name in folders)],
    ["tests/judge/metrics/test_registry.py", "tests/judge/metrics/test_origin.py"],
)
for words in runs:
    status = pytest.main(["-q", "-n", "0", "-p", "no:cacheprovider", *words])
    assert status == 0, words
    assert "tensorflow" not in sys.modules, words
"""


@pytest.mark.slow
def test_tests_of_text_load_no_tensorflow() -> None:
    """Neither to be collected, nor, in some files, to run."""
    finished([sys.executable, "-c", TESTED], cwd=ROOT, seconds=280)


def test_a_test_that_needs_it_has_eight_devices(cpu_devices: tuple[str, ...]) -> None:
    import tensorflow as tf

    devices = tf.config.list_logical_devices("CPU")
    assert len(devices) == len(cpu_devices) == 8
