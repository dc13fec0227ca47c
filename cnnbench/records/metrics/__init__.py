"""Declarations of the metrics of runs. A module registers its metrics when it is imported."""
