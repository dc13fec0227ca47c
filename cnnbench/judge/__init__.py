"""Converts records to verdicts, pages and trends. Does not need TensorFlow."""
