"""Variable placement and gradient aggregation."""
