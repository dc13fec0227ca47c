"""Runs of a few steps in this process, and what they print."""

from __future__ import annotations

import io
from typing import NamedTuple

from cnnbench import BenchmarkCNN, Params, RunRecord
from cnnbench.base.text.progress import Messages
from cnnbench.run.driver.console import Console

TINY = {
    "model": "trivial",
    "data_name": "cifar10",
    "device": "cpu",
    "batch_size": 2,
    "num_batches": 4,
    "num_warmup_batches": 2,
    "init_learning_rate": 0.01,
}


class Ran(NamedTuple):
    """A record, the lines of standard output, and standard error."""

    record: RunRecord
    lines: list[str]
    err: str


def run(**flags: object) -> Ran:
    """A run with `flags`, else those of `TINY`."""
    out, err = io.StringIO(), io.StringIO()
    params = Params.from_dict({**TINY, **flags})
    record = BenchmarkCNN(params, console=Console(out), messages=Messages(err)).run()
    return Ran(record, out.getvalue().splitlines(), err.getvalue())
