"""TensorFlow is imported by the first use of one of its names, and not before."""

from __future__ import annotations

import sys

import pytest
import tensorflow
from forked import finished

from cnnbench import lazy_tensorflow

FIRST_USE = """
import sys
from cnnbench.optimizers import clipping
print("tensorflow" in sys.modules)
print(clipping.tf.device)
print("tensorflow" in sys.modules)
"""


def test_names_are_those_of_tensorflow():
    assert lazy_tensorflow.zeros is tensorflow.zeros
    assert lazy_tensorflow.__version__ == tensorflow.__version__
    for name in ("no_such_name", "__wrapped__"):
        with pytest.raises(AttributeError):
            getattr(lazy_tensorflow, name)


def test_the_first_use_imports_tensorflow(tmp_path):
    (tmp_path / "tensorflow.py").write_text("device = 'stand-in'")
    done = finished([sys.executable, "-c", FIRST_USE], cwd=tmp_path)
    assert done.stdout.split() == ["False", "stand-in", "True"]
