"""Cost model of all-reduces on hardware that is not present; without TensorFlow.

Formulas in the number of devices and the size of the tensors, with the parameters of links.
"""
