"""The version of cnnbench."""

__version__ = "1.0.0"
