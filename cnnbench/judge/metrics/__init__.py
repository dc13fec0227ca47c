"""Metrics of measurements, the verdict policy, and a team's rules."""
