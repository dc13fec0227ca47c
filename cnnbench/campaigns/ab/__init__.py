"""``cnnbench ab``: compares A and B in pairs of new processes. TensorFlow is not loaded.

`experiment` describes an experiment. `sessions` reads from its folder what its sessions have done.
`opening` makes A and B ready.
`pairs` runs the pairs of processes. At each interim analysis, it judges the pairs by
`cnnbench.judge.compare` and decides whether the experiment ends.
"""
