"""Runs in child processes; imports no TensorFlow.

``commands`` resolves the flags beforehand, ``child`` runs a process under its ``guard`` and
``turns`` several that step in turn, ``outcome`` adds the record to how a process ended,
``campaign`` is the loop over processes, ``results_dir`` the directory that takes what they leave.
"""
