"""Aggregation of the towers' gradients: stages around an all-reduce."""
