"""Explains from profiled training steps why A or B is slower in a comparison of A and B. Does not
import TensorFlow.
"""

from cnnbench.judge.explain.explanation import explain

__all__ = ["explain"]
