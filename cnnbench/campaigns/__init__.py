"""Many processes: pairs, suites, bisections, modes, jobs."""
