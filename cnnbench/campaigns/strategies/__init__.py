"""``cnnbench strategies``: comparison of all modes of --variable_update, and of their weights."""
