"""The built-in networks of cnnbench. A module registers its networks when it is imported."""
