"""Strategies of tf.distribute as variable managers; importing this does not import TensorFlow."""
