"""``cnnbench tune``: the fastest flags for one network on this machine, and their proof.

`dimensions` is the table of flags that vary in each situation, `space` makes candidates of it,
`race` eliminates candidates by measured speeds, `search` iterates over the groups of dimensions.
None of these starts a process. `bench` measures candidates, `budget` limits time and lengths,
`final` compares the leader with the given flags, `session` runs the whole, `outcome` and `text`
format the result. Imports no TensorFlow before all has been measured.
"""
