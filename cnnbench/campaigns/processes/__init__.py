"""Runs commands in child processes. Does not import TensorFlow."""
