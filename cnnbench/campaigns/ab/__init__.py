"""``cnnbench ab``: two sides measured alternately, a fresh process per sample; no TensorFlow.

`pairs` runs the pairs of processes; after each of the interim analyses of `sequential` it judges
them by `cnnbench.judge.compare` and determines whether to end.
"""
