"""The comparison with peers: what is run, in which order, and what is concluded from it.

Standard library only: neither Keras nor PyTorch nor TensorFlow is ever imported
into the process that measures. Each measurement is a fresh process; those in
``children/`` run under the interpreter of their peer and import nothing from here.
"""
