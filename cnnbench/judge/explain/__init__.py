"""Explains why one side takes longer by profiled steps of both sides, without TensorFlow."""

from cnnbench.judge.explain.explanation import explain

__all__ = ["explain"]
