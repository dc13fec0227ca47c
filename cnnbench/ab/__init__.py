"""``cnnbench ab``: two sides measured in turn, a fresh process per sample.

`looks` says after how many pairs a verdict may be given and at which level, `Side` how a
process of a side is started, `Session` runs them, `Results` keeps what they measured. The
verdicts are those of `cnnbench.compare`. Imports no TensorFlow.
"""

from __future__ import annotations
