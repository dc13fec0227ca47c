"""`cnnbench bisect`: finds the commit that made a model slower.

First, BAD is compared with GOOD as by `cnnbench ab`. If, for example, BAD is slower by a quarter,
changes of 3 % between other commits do not matter. Therefore, half of BAD's change (on a
logarithmic scale) is the threshold of the comparisons of other commits with GOOD. This needs far
fewer pairs, and is robust against other programs on the machine. Each commit is compared once. The
candidates depend only on the answers, so a bisection can be resumed.
"""
