"""``cnnbench tune``: the fastest flags for one network on this machine, and their proof.

`dimensions` is the table of what is varied in which situation, `space` makes candidates of it,
`race` decides who stays from what was measured, `search` goes through the groups of dimensions.
None of these starts a process. `bench` measures candidates, `final` proves the leader against the
flags as they were given, `session` runs the whole, `outcome` and `text` say what was found.
Imports no TensorFlow before all has been measured.
"""
