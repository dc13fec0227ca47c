"""Flags in words: ``--help`` of every command, and docs/flags.md.

``python -m cnnbench.flags.help > docs/flags.md`` writes the latter.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from cnnbench.flags.declare import FlagSpec, specs_of
from cnnbench.flags.params import FLAGS, GROUPS
from cnnbench.flags.retired import OBSOLETE

Section: TypeAlias = "tuple[str, Sequence[FlagSpec]]"
"""Title and flags of a part of the help."""

_VALUE = {
    "integer": "N",
    "number": "X",
    "string": "TEXT",
    "integers": "N,N,...",
    "numbers": "X,X,...",
}

MOST_USED = (
    *("model", "batch_size", "num_gpus", "device", "precision", "use_fp16"),
    *("num_batches", "num_warmup_batches", "forward_only", "eval"),
    *("data_dir", "data_name", "train_dir", "optimizer"),
    *("variable_update", "all_reduce_spec", "local_parameter_device", "xla_compile"),
    *("result_json", "result_csv"),
)
"""The flags that the help of a run opens with."""

_HEAD = """\
# Flags

Made from the declarations in `cnnbench/flags/` by `python -m cnnbench.flags.help`; do not edit.

Write `--flag=value` or `--flag value`, with one dash or two; for a boolean also `--flag` and
`--noflag`. `--flagfile=FILE` reads flags from a file, one per line. Of repeated flags the last
one counts. [migrating.md](migrating.md) lists what differs from tf_cnn_benchmarks.
"""


def sections() -> tuple[Section, ...]:
    """The flags of a run by group, obsolete ones last."""
    groups = tuple((title, specs_of(group)) for title, group in GROUPS)
    return (*groups, ("Without meaning in TensorFlow 2 (accepted, change nothing)", OBSOLETE))


def run_help(width: int | None = None) -> str:
    """The flags of a run: first the most used ones, then all others by group.

    Args:
      width: see `flags_help`.
    """
    by_name = {spec.name: spec for spec in FLAGS}
    first = ("Most used", [by_name[name] for name in MOST_USED])
    others = ((title, [s for s in specs if s.name not in MOST_USED]) for title, specs in sections())
    return flags_help((first, *others), width)


def command_help(about: str, flags: Iterable[Section], end: str = "") -> str:
    """The help of a command other than a run.

    Args:
      about: usage and purpose.
      flags: its flags.
      end: what follows them, such as exit codes.
    """
    return "\n".join(part for part in (about, flags_help(flags), end) if part)


def flags_help(flags: Iterable[Section], width: int | None = None) -> str:
    """Flags with type, default, valid values and meaning, by section.

    Args:
      flags: what to list.
      width: columns to fill; the terminal's, at most 100, if None.
    """
    columns = width or min(shutil.get_terminal_size().columns, 100)
    return "\n".join(
        "\n".join([f"{title}:", *(_entry(spec, columns) for spec in specs), ""])
        for title, specs in flags
    )


def markdown() -> str:
    """The text of docs/flags.md."""
    return "\n".join([_HEAD, *(_table(title, specs) for title, specs in sections())])


def _default_text(spec: FlagSpec) -> str:
    """The default as it is written on the command line."""
    if spec.default is None:
        return "not set"
    return spec.text(spec.default) or "empty"


def _entry(spec: FlagSpec, width: int) -> str:
    if spec.kind == "boolean":
        head = f"  --[no]{spec.name}"
    else:
        head = f"  --{spec.name}={_VALUE[spec.kind]}"
    facts = [spec.kind, f"default {_default_text(spec)}", spec.range_text]
    body = f"{spec.help} ({'; '.join(fact for fact in facts if fact)})"
    indent = " " * 6
    return head + "\n" + textwrap.fill(body, width, initial_indent=indent, subsequent_indent=indent)


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
    default = _default_text(spec)
    cells = [
        f"`--{spec.name}`",
        spec.kind,
        default if default in ("not set", "empty") else f"`{default}`",
        spec.help,
        spec.range_text,
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    sys.stdout.write(markdown())
