"""Outputs of a run beside its record: graphs, traces, profiles, summaries, logs."""
