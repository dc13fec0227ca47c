"""Measures and predicts parts of a training step: all-reduces and their costs, and layers."""
