"""``cnnbench strategies``: comparison of all modes of --variable_update, and of their weights.

`plan` selects modes and flags, `session` runs them in turn, each time in a fresh process, `weights`
compares their checkpoints, `table` formats the results. TensorFlow is imported for checkpoints
only.
"""
