"""Predicts all-reduce times with a cost model, also for hardware that is not available.

The formulas depend on the number of devices, the sizes of tensors, and parameters of links. This
package does not import TensorFlow.
"""
