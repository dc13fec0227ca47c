"""``cnnbench bisect``: the commit that made a benchmark slower.

`commits` knows the history, `search` what the answers so far leave open, `bench` measures a
commit against GOOD by the means of `cnnbench.campaigns.ab`, `session` goes from step to step and
keeps a journal, `text` is what people read. Imports no TensorFlow.
"""
