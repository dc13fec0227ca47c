"""The networks of cnnbench: each module registers its own when it is imported."""
