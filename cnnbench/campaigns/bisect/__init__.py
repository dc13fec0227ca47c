"""`cnnbench bisect`: finds the commit that made a model slower.

First, BAD is compared with GOOD as by `cnnbench ab`. If, for example, BAD is slower by a quarter,
changes of 3 % between other commits do not matter. Therefore, a commit between GOOD and BAD counts
as slower than GOOD from half of BAD's change (on a logarithmic scale). This needs far fewer pairs,
and is robust against other programs on the machine. If the result for a commit is inconclusive with
this threshold, the commit is bad if it is slower by the usual threshold. The candidates depend only
on the answers, so a bisection can be resumed.
"""
