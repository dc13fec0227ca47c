"""The flags in words, for ``--help`` and docs/flags.md."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable

from cnnbench.flags.declare import FlagSpec, specs_of
from cnnbench.flags.params import FLAGS, GROUPS
from cnnbench.flags.retired import NOT_YET, OBSOLETE

_VALUE = {
    "integer": "N",
    "number": "X",
    "string": "TEXT",
    "integers": "N,N,...",
    "numbers": "X,X,...",
}
OBSOLETE_TITLE = "Without meaning in TensorFlow 2 (accepted, change nothing)"


def sections() -> tuple[tuple[str, tuple[FlagSpec, ...]], ...]:
    """Title and flags of every section of the help, obsolete flags last."""
    groups = tuple((title, specs_of(group)) for title, group in GROUPS)
    return (*groups, (OBSOLETE_TITLE, OBSOLETE))


def flags_help(
    width: int | None = None,
    titled: Iterable[tuple[str, Iterable[FlagSpec]]] | None = None,
) -> str:
    """Flags with type, default, valid values and meaning, by section.

    Args:
      width: columns to fill; the terminal's, at most 100, if None.
      titled: title and flags of every section; those of a run if None.
    """
    columns = width or min(shutil.get_terminal_size().columns, 100)
    shown = sections() if titled is None else titled
    return "\n".join(_section(title, specs, columns) for title, specs in shown)


def default_text(spec: FlagSpec) -> str:
    """The default as one would write it on the command line; 'not set' for none."""
    if spec.default is None:
        return "not set"
    return spec.text(spec.default) or "empty"


def limits(spec: FlagSpec) -> str:
    """Valid values of a flag in words, with what is not available yet; '' for any."""
    entry = NOT_YET.get(spec.name)
    # Another command may have a flag of this name.
    if entry is None or spec not in FLAGS:
        return spec.range_text
    if not entry.values:
        return f"not available yet: {entry.machinery}"
    refused = ", ".join(entry.values)
    offered = ", ".join(c for c in spec.choices if c not in entry.values)
    return f"one of {offered}; not available yet: {refused}"


def _section(title: str, specs: Iterable[FlagSpec], width: int) -> str:
    return "\n".join([f"{title}:", *(_entry(spec, width) for spec in specs), ""])


def _entry(spec: FlagSpec, width: int) -> str:
    if spec.kind == "boolean":
        head = f"  --[no]{spec.name}"
    else:
        head = f"  --{spec.name}={_VALUE[spec.kind]}"
    facts = [spec.kind, f"default {default_text(spec)}", limits(spec)]
    body = f"{spec.help} ({'; '.join(fact for fact in facts if fact)})"
    indent = " " * 6
    return head + "\n" + textwrap.fill(body, width, initial_indent=indent, subsequent_indent=indent)
