"""Measurements and models of parts of a step: reductions, their costs, layers."""
