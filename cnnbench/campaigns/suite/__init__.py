"""Suites of configurations, which YAML files describe: `nodes` reads a file, and `entries` checks
what it contains, and expands its entries to the configurations to measure.
"""
