"""Measures all-reduces and layers of a training step separately, and predicts all-reduce times."""
