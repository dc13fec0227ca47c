"""Campaigns of several processes: pairs, suites, bisections, modes, jobs."""
