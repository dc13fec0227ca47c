"""The comparison of cnnbench with its peers: programs, order of processes, and requirements.

The process that measures imports neither Keras nor PyTorch nor TensorFlow. Each measurement is a
fresh process. The programs in ``children/`` run under the interpreter of their peer, and import
nothing from this package. ``process`` needs only the standard library.
"""
