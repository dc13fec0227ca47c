"""Runs in child processes; imports no TensorFlow.

``commands`` resolves the flags beforehand, ``child`` runs the process under its ``guard``,
``outcome`` makes a record of how it ended, ``reporter`` prints progress, ``results_dir`` holds
what results directories share.
"""
