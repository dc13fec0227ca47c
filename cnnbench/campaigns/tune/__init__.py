"""``cnnbench tune``: the fastest flags for one network on this machine, and their proof.

No TensorFlow is imported before all has been measured.
"""
