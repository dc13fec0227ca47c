"""``cnnbench ab``: compares sides A and B in alternating new processes, without TensorFlow.

`pairs` runs the pairs of processes. At each interim analysis, it judges the pairs by
`cnnbench.judge.compare` and decides whether the experiment ends.
"""
