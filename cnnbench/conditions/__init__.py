"""Measuring conditions: what else happens on the machine, and what to do about it.

`watch.Watch` looks at a run, `before` and `during` hold the checks, `ids` their names.
"""
