"""Suites of runs: from a YAML file to records, one process per run; imports no TensorFlow.

``document`` and ``schema`` read and check the file, ``expansion`` and ``planning`` turn it
into cases, ``guard`` and ``process`` run one child, ``outcome`` and ``store`` make its record
durable, ``runner`` does all of it in a random order, ``summary`` judges what came out.
"""
