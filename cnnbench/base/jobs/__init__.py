"""Processes of a job: identity, addresses and liveness."""
