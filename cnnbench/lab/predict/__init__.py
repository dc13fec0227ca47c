"""Cost model of all-reduces on devices that are not there; without TensorFlow.

Formulas in the number of devices and the size of the tensors (`interconnect` for devices with
links, `host` for devices that share the cores of a machine), with parameters that are published
(`links`) or fitted to measured points and checked on points that were held out (`fit`).
"""
