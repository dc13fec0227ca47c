"""Measures parts of a training step separately (all-reduces, layers)."""
