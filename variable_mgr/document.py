"""Table of docs/modes.md, which ``python -m cnnbench.variable_mgr.document FILE`` rewrites."""

from __future__ import annotations

import sys

from cnnbench.base.terminal import markdown_table, rewrite
from cnnbench.variable_mgr.modes import BUILT_IN, Mode

NAME = "modes"

_HEADER = (
    *("mode", "copies of a variable", "gradients", "across processes", "ps tasks"),
    *("towers in sync", "class in `tf.distribute`"),
)


def table() -> str:
    """A Markdown table of the built-in modes."""
    return markdown_table(_HEADER, ["---"] * len(_HEADER), [_row(mode) for mode in BUILT_IN])


def _row(mode: Mode) -> tuple[str, ...]:
    return (
        f"`{mode.name}`",
        mode.copies.value,
        mode.reduction.value,
        mode.processes.value,
        "yes" if mode.uses_ps else "no",
        "yes" if mode.in_sync else "no",
        f"`{mode.strategy}`" if mode.strategy else "",
    )


if __name__ == "__main__":
    rewrite(sys.argv[1:], NAME, table())
