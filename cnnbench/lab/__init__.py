"""Measurements and models of the parts of a step: reductions and their costs, and layers."""
