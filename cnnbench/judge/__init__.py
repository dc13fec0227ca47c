"""Turns records into verdicts, report pages and histories. Does not need TensorFlow."""
