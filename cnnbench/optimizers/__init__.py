"""Declarations of optimizers."""
