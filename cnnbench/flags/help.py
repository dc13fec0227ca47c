"""Formats flags as text: ``--help`` of every command, and docs/flags.md, which this module
prints.
"""

from __future__ import annotations

import io
import itertools
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from cnnbench.flags.declare import FlagSpec, specs_of
from cnnbench.flags.groups.repeat import RepeatFlags
from cnnbench.flags.obsolete import ABSL, ObsoleteParams
from cnnbench.flags.params import ADDED, GROUPS, SPECS

Section: TypeAlias = "tuple[str, Sequence[FlagSpec]]"
"""Title and flags of a section of the help."""

MOST_USED = tuple(
    """
    model batch_size num_gpus device precision use_fp16 num_batches num_warmup_batches
    forward_only eval data_dir data_name train_dir optimizer variable_update
    all_reduce_spec local_parameter_device xla_compile result_json result_csv
    """.split()
)
"""The first flags in the help of ``cnnbench run``."""

_RUN = """\
Usage: cnnbench [run] [FLAGS]

Measures training, evaluation or inference. Write --flag=value or --flag value, with one dash or
two; --flag or --noflag for booleans. --flagfile=FILE reads flags from a file. --only_check_args
prints what the flags mean and runs nothing.
"""

_OTHERS: tuple[Section, ...] = (
    (
        "Without meaning in TensorFlow 2 (accepted, change nothing)",
        specs_of(ObsoleteParams),
    ),
    ("Flags of absl.app (only the first has an effect)", ABSL),
)

_HEAD = """\
# Flags

*Reference.* How to: [measure a run](run.md).

This page is generated from `cnnbench/flags/` by `python -m cnnbench.flags.help`; do not edit it.

Write `--flag=value` or `--flag value`, with one dash or two. Boolean flags can also be written as
`--flag` and `--noflag`. `--flagfile=FILE` reads flags from a file, one per line. If you repeat a
flag, the last value is used. Paths are local and may be written as `file:///PATH`. Flags with the
valid values "a path or a URL" also accept URLs of TensorFlow's file systems, such as
`gs://bucket/folder` ([input.md](input.md#urls)). [migrating.md](migrating.md) lists the differences
from tf_cnn_benchmarks.
"""


_USAGE = "Usage: "
_NARROWEST = 40
_PROSE = re.compile(rf"(?!{_USAGE})\S")
_AT_SPACES: Mapping[str, Any] = {"break_long_words": False, "break_on_hyphens": False}


def flag_sections_of_run() -> tuple[Section, ...]:
    """Returns the flags of a run in sections with titles. Flags of loaded plug-ins are included,
    obsolete flags are not.
    """
    repeated = ("Repeated measurement", specs_of(RepeatFlags))
    return repeated, *(
        (title, (*specs_of(group), *ADDED.get(group, dict)().values())) for title, group in GROUPS
    )


def all_sections() -> tuple[Section, ...]:
    """Returns all flags of a run in sections with titles; obsolete and absl flags come last."""
    return (*flag_sections_of_run(), *_OTHERS)


def run_help(width: int | None = None, *, obsolete: bool = False) -> str:
    """Returns the text of ``cnnbench run --help``: first the most used flags, then all other flags
    by section.

    If `obsolete` is True, obsolete flags and flags of absl.app are appended.
    """
    first = ("Most used", [SPECS[name] for name in MOST_USED])
    others = (
        (title, [s for s in specs if s.name not in MOST_USED])
        for title, specs in flag_sections_of_run()
    )
    last = _OTHERS if obsolete else ()
    return "\n".join([wrap_help(_RUN, width), flags_help((first, *others, *last), width)])


def command_help(about: str, flags: Iterable[Section], end: str = "") -> str:
    """Returns the help text of a command other than ``cnnbench run``. `end` (for example, exit
    codes) follows the flags.
    """
    return "\n".join(part for part in (wrap_help(about), flags_help(flags), wrap_help(end)) if part)


def wrap_help(text: str, width: int | None = None) -> str:
    """Breaks the lines of a help text at `width` columns; None means the terminal's width.

    Indented lines and lines after "Usage:" are commands. The other lines are joined to paragraphs.
    """
    columns = width or _columns()
    lines = re.sub(r" \\\n +", " ", text).splitlines()
    fitted: list[str] = []
    for is_prose, group in itertools.groupby(lines, lambda line: bool(_PROSE.match(line))):
        if is_prose:
            fitted += textwrap.wrap(" ".join(group), columns, **_AT_SPACES)
        else:
            fitted += (_wrap_command(line, columns) for line in group)
    return "".join(f"{line}\n" for line in fitted)


def _wrap_command(line: str, columns: int) -> str:
    """Breaks a command at `columns`. A backslash ends each line of an example, as in a shell."""
    if len(line) <= columns:
        return line
    indent = line[: len(line) - len(line.removeprefix(_USAGE).lstrip())]
    end = "" if len(indent) == len(_USAGE) else " \\"
    # A placeholder such as [FLAGS OF A RUN] must not be broken, so its spaces are replaced for now.
    words = re.sub(r"\[[^]]*\]", lambda match: match[0].replace(" ", "\0"), line[len(indent) :])
    pieces = textwrap.wrap(
        words,
        columns - len(end),
        initial_indent=indent,
        subsequent_indent=" " * (len(indent) + 4),
        **_AT_SPACES,
    )
    return f"{end}\n".join(pieces).replace("\0", " ")


def flags_help(flags: Iterable[Section], width: int | None = None) -> str:
    """Formats the flags of each section for a terminal. `width` is in columns; None means the
    terminal's width, at most 100.
    """
    columns = width or _columns()
    return "\n".join(
        "\n".join([f"{title}:", *(_entry(spec, columns) for spec in specs), ""])
        for title, specs in flags
    )


def xml_help(flags: Iterable[Section]) -> str:
    """Formats flags in absl's XML format. Section titles are written in place of file names."""
    # absl is imported late, because it is slow to import and only this function needs it.
    from absl import flags as absl_flags

    defining = {
        "boolean": absl_flags.DEFINE_boolean,
        "integer": absl_flags.DEFINE_integer,
        "number": absl_flags.DEFINE_float,
        **dict.fromkeys(("integers", "numbers", "strings"), absl_flags.DEFINE_list),
    }
    values = absl_flags.FlagValues()
    for title, specs in flags:
        for spec in specs:
            define = defining.get(spec.kind.name, absl_flags.DEFINE_string)
            limits: dict[str, Any] = {}
            if spec.choices:
                define, limits = absl_flags.DEFINE_enum, {"enum_values": list(spec.choices)}
            if spec.kind.name in ("integer", "number"):
                limits = {"lower_bound": spec.minimum, "upper_bound": spec.maximum}
            default = None if spec.default is None else spec.text(spec.default)
            # Several sub-commands of `cnnbench data` declare the same flag, so a second definition
            # is allowed.
            own = {"flag_values": values, "module_name": title, "allow_override": True}
            own["short_name"] = spec.short or None
            define(spec.name, default, help=spec.help, **limits, **own)
    text = io.StringIO()
    values.write_help_in_xml_format(text)
    return text.getvalue().rstrip()


def flags_page_markdown() -> str:
    """Returns the text of the page docs/flags.md."""
    return "\n".join([_HEAD, *(_table(title, specs) for title, specs in all_sections())])


def _columns() -> int:
    """Width of help texts: that of the terminal, or COLUMNS, but at most 100 columns."""
    return max(_NARROWEST, min(shutil.get_terminal_size().columns, 100))


def _default_text(spec: FlagSpec) -> str:
    if spec.default is None:
        return "not set"
    return spec.text(spec.default) or "empty"


def _entry(spec: FlagSpec, width: int) -> str:
    if spec.kind.name == "boolean":
        head = f"  --[no]{spec.name}"
    else:
        short = f"-{spec.short}, " if spec.short else ""
        head = f"  {short}--{spec.name}={spec.kind.form}"
    facts = [spec.kind.name, f"default {_default_text(spec)}", spec.kind.accepted()]
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
        spec.kind.name,
        default if default in ("not set", "empty") else f"`{default}`",
        spec.help,
        spec.kind.accepted(),
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    sys.stdout.write(flags_page_markdown())
