"""What a run shows of itself beside its figures: graphs, traces, profiles, summaries, logs."""
