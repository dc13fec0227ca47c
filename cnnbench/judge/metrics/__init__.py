"""Metrics, verdict policy, and facts that must be alike."""
