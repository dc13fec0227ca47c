"""Outputs of a run in addition to its record: graphs, traces, profiles, summaries, logs."""
