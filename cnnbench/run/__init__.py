"""One run: the graph of all towers, its timed loop and its record."""
