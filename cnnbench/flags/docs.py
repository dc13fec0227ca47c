"""Writes docs/flags.md: ``python -m cnnbench.flags.docs > docs/flags.md``."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from cnnbench.flags.declare import FlagSpec
from cnnbench.flags.help import default_text, limits, sections

_HEAD = """\
# Flags

Made from the declarations in `cnnbench/flags/` by `python -m cnnbench.flags.docs`; do not edit.

Write `--flag=value` or `--flag value`, with one dash or two; for a boolean also `--flag` and
`--noflag`. `--flagfile=FILE` reads flags from a file, one per line. Of repeated flags the last
one counts. [migrating.md](migrating.md) tells what differs from tf_cnn_benchmarks.
"""


def markdown() -> str:
    """The text of docs/flags.md."""
    return "\n".join([_HEAD, *(_table(title, specs) for title, specs in sections())])


def _table(title: str, specs: Iterable[FlagSpec]) -> str:
    rows = [
        f"## {title}",
        "",
        "| flag | type | default | meaning | valid values |",
        "|---|---|---|---|---|",
        *(_row(spec) for spec in specs),
        "",
    ]
    return "\n".join(rows)


def _row(spec: FlagSpec) -> str:
    default = default_text(spec)
    cells = [
        f"`--{spec.name}`",
        spec.kind,
        default if default in ("not set", "empty") else f"`{default}`",
        spec.help,
        limits(spec),
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    sys.stdout.write(markdown())
