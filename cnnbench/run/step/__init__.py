"""The training step: all towers in one traced function."""
