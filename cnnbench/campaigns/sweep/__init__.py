"""Suites of runs: from a YAML file to records, one process per run; imports no TensorFlow.

``document`` and ``schema`` read and check the file, ``expansion`` expands entries to sets of
flags, ``planning`` these to cases; ``runner`` starts the processes in random order, ``store``
writes their records, ``summary`` makes the table and the verdicts on bounds.
"""
