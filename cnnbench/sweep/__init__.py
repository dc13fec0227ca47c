"""Suites of runs: from a YAML file to records, one process per run; imports no TensorFlow.

``document`` and ``schema`` read and check the file, ``expansion`` and ``planning`` turn it
into cases, ``store`` makes records durable, ``runner`` starts a `cnnbench.processes` for each run
in a random order, ``summary`` judges what came out.
"""
