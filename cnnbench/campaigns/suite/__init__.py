"""Suites of configurations, which YAML files describe: `nodes` reads a file, `keys` checks what it
contains, and `cases` expands its entries to the configurations to measure.
"""
