"""Explains, from profiled steps of both sides, why one side is slower.

Does not import TensorFlow.
"""

from cnnbench.judge.explain.explanation import explain

__all__ = ["explain"]
