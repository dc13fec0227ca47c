"""``cnnbench bisect``: search for the commit that made a benchmark slower.

`commits` reads the history, `search` keeps the candidate commits, `bench` measures a commit against
GOOD with `cnnbench.campaigns.ab`, `session` runs the steps, keeps a journal and formats the result.
Imports no TensorFlow.
"""
