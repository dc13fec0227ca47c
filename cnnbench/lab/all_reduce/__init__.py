"""Implements ``cnnbench allreduce``, which measures and checks all-reduces without a
training step.
"""
