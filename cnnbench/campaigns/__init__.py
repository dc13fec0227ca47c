"""Commands that measure with several processes: pairs, suites, bisections, modes, jobs."""
