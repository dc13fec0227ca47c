"""Runs in child processes; imports no TensorFlow."""
