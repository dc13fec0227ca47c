"""Runs in child processes; imports no TensorFlow.

``commands`` resolves the flags beforehand, ``child`` runs the process under its ``guard``,
``outcome`` makes a record of how it ended, ``results_dir`` is common to results directories.
"""
