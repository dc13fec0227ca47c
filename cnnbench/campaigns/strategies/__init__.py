"""``cnnbench strategies``: comparison of all modes of --variable_update, and of their weights.

`plan` says which modes run with which flags, `session` runs them in turn, each time in a fresh
process, `weights` compares the checkpoints they leave, `table` says what was found. Imports
TensorFlow for nothing but the checkpoints.
"""
