"""Cost model for all-reduces on hardware that is not available. Does not import TensorFlow.

Formulas depend on the number of devices, the sizes of tensors, and parameters of links.
"""
