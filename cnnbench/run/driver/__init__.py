"""The driver: one run from parameters to record."""
