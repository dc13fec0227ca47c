"""``cnnbench tune``: finds the fastest flags for a network, and proves that they are faster.

TensorFlow is imported only after all measurements.
"""
