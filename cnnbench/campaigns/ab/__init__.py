"""``cnnbench ab``: compares A and B in pairs of new processes. TensorFlow is not loaded.

`experiment` describes an experiment, and `state` reads it from its folder. `pairs` runs the pairs of
processes. At each interim analysis, it judges the pairs by
`cnnbench.judge.compare` and decides whether the experiment ends.
"""
