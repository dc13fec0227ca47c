"""Explains from profiled training steps why one side of a comparison is slower than the other. Does
not import TensorFlow.
"""

from cnnbench.judge.explain.explanation import explain

__all__ = ["explain"]
