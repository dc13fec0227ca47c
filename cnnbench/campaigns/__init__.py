"""Commands that start several processes: ab, bisect, launch, sweep and tune."""
