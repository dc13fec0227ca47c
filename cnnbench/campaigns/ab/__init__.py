"""``cnnbench ab``: two sides measured alternately, a fresh process per sample.

`sequential` determines after how many pairs a verdict may be given and at which level, `side`
runs a process of a side, `flags` checks its flags, `pairs` runs the pairs, `session` judges them
and determines when to end, `results` stores their records. The verdicts are those of
`cnnbench.judge.compare`. Imports no TensorFlow.
"""
