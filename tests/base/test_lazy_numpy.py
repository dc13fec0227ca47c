"""NumPy is imported by the first use of one of its names, and not before."""

from __future__ import annotations

import sys

import numpy
import pytest
from forked import finished

from cnnbench.base.lazy_numpy import np

FIRST_USE = """
import sys
from cnnbench.base import inference, levels, slow_steps
print("numpy" in sys.modules)
print(slow_steps.slower_step_indices([1.0] * 20 + [9.0]))
print("numpy" in sys.modules)
"""


def test_names_are_those_of_numpy():
    assert np.asarray is numpy.asarray
    assert np.linalg is numpy.linalg
    for name in ("no_such_name", "__wrapped__"):
        with pytest.raises(AttributeError):
            getattr(np, name)


def test_the_first_use_imports_numpy():
    assert finished([sys.executable, "-c", FIRST_USE]).stdout == "False\n[20]\nTrue\n"
