"""A run of a benchmark: the graph of all towers, the timed loop, and the record of the results."""
