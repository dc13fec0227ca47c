"""``cnnbench sweep``: plans and runs a suite of configurations, and summarises the results."""
