"""``cnnbench tune``: finds the fastest flags for a network on this machine, and proves them.

TensorFlow is imported only after all measurements.
"""
