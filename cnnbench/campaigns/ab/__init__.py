"""``cnnbench ab``: measures two sides in alternating new processes. Does not import TensorFlow.

`pairs` runs the pairs of processes; after each of the interim analyses of `sequential` it judges
them by `cnnbench.judge.compare` and determines whether to end.
"""
