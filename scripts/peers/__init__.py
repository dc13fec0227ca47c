"""The comparison with peers: what is run, in which order, and what is concluded from it.

Neither Keras nor PyTorch nor TensorFlow is imported into the process that measures. Each
measurement is a fresh process; those in ``children/`` run under the interpreter of their peer
and import nothing from here. ``process`` needs the standard library only.
"""
