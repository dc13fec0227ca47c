"""Suites of runs: from a YAML file to records, one process per run; imports no TensorFlow."""
