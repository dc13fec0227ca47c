"""The driver of a run: from the parameters to the written record."""
