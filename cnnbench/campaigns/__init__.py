"""Commands that start several processes: ab, bisect, launch, strategies, sweep and tune."""
