"""Measurements and models of single parts: reductions, costs, layers of a step."""
