"""``cnnbench tune``: the fastest flags for one network on this machine, and their proof.

`dimensions` is the table of flags that vary in each situation, `space` makes candidates of it,
`race` eliminates candidates, `search` iterates over the groups of dimensions; none of these starts
a process. No TensorFlow is imported before all has been measured.
"""
