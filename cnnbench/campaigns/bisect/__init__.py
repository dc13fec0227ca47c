"""``cnnbench bisect``: search for the commit that made a benchmark slower; no TensorFlow."""
