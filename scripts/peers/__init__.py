"""The comparison of cnnbench with peers: subjects, order, and conclusions.

Neither Keras nor PyTorch nor TensorFlow is imported into the process that measures. Each
measurement is a fresh process; those in ``children/`` run under the interpreter of their peer
and import nothing from here. ``process`` needs the standard library only.
"""
