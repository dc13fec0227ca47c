"""The version of cnnbench."""

__version__ = "0.1.0"
