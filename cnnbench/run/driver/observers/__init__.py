"""What happens between steps: logs, summaries, profiles, checks, checkpoints and evaluations."""
