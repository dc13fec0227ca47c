"""Command lines of campaigns: which words are flags of the command, and which of runs. Writes the
command lines that repeat or continue a campaign.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from cnnbench.base.terminal import ChildProcessReporter
from cnnbench.campaigns.launch import flags_to_arguments
from cnnbench.cli.commands import write_or_print_output
from cnnbench.errors import UsageError
from cnnbench.flags import (
    FLAGS,
    RENAMED,
    FlagSpec,
    parse_command,
    split_at_double_dash,
    split_command_line,
)
from cnnbench.machine.facts import may_record_variable

VARIABLES = ("a_env", "b_env")
"""Flags whose values may be secrets."""


def split_command_and_run_flags(
    argv: Sequence[str], specs: Sequence[FlagSpec], usage: str
) -> tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]:
    """Splits a command line into the command's flags, other arguments, and flags after "--".

    If a flag of runs is in the wrong place, the error message says where it belongs. `usage` begins
    with the name of the command.
    """
    words, common = split_at_double_dash(argv)
    try:
        values, arguments = parse_command(words, specs)
    except UsageError:
        own = {spec.name for spec in specs}
        of_runs = {spec.name for spec in FLAGS} - own
        for word in words:
            name = word.lstrip("-").partition("=")[0]
            if word.startswith("-") and (name in of_runs or name.removeprefix("no") in of_runs):
                hint = "; put flags of only A or only B into --a or --b" if "a" in own else ""
                raise UsageError(
                    f"--{name} is a flag of cnnbench run, not of {usage.split()[0]}: put flags of "
                    f"all runs after --, as in cnnbench {usage} -- {word}{hint}"
                ) from None
        raise
    if common and common[0] == "run":
        common = common[1:]
    refuse_flags_of_command(common, specs, usage)
    return values, arguments, tuple(common)


def refuse_flags_of_command(words: Sequence[str], specs: Sequence[FlagSpec], usage: str) -> None:
    """Raises UsageError if a flag of a command stands after "--", where the flags of runs belong.

    Args:
      words: what stands after "--".
      specs: flags of the command.
      usage: command line without flags; it begins with the name of the command.
    """
    own = {spec.name for spec in specs} - {spec.name for spec in FLAGS}
    for word in words:
        name = word.lstrip("-").partition("=")[0]
        if word.startswith("-") and (name in own or name.removeprefix("no") in own):
            raise UsageError(
                f"--{name} is a flag of cnnbench {usage.split()[0]}, not of its runs: put flags of "
                f"{usage.split()[0]} before --, as in cnnbench {usage} {word} -- ..."
            )


def mask_variable_value(text: str) -> str:
    """Hides the value of an environment variable in NAME=VALUE, because it may be a secret.

    The value is replaced by "..." unless records contain this variable.
    """
    name, equals, _ = text.partition("=")
    return text if not equals or may_record_variable(name) else f"{name}=..."


def flag_words(
    values: Mapping[str, Any], specs: Sequence[FlagSpec], left_out: Collection[str] = ()
) -> list[str]:
    """Writes flags, given as values by name, as words of a command line.

    Environment variables are written as in `mask_variable_value`.
    """
    words = []
    for spec in (spec for spec in specs if spec.name in values and spec.name not in left_out):
        value = values[spec.name]
        texts = [spec.text(value)]
        if spec.name in VARIABLES:
            texts = [mask_variable_value(text) for text in value]
        words += [f"--{spec.name}={text}" for text in texts]
    return words


def replace_flags(
    argv: Sequence[str],
    specs: Sequence[FlagSpec],
    names: Collection[str],
    added: Sequence[str] = (),
) -> list[str]:
    """Removes flags from a command line, before "--", and adds other flags in their place.

    Flag files are replaced by their flags. Environment variables are written as in
    `mask_variable_value`.
    """
    texts, rest = split_command_line(argv, {spec.name: spec for spec in specs})
    arguments, behind = split_at_double_dash(rest)
    before = [
        f"--{name}={mask_variable_value(text) if name in VARIABLES else text}"
        for name, texts_of_flag in texts.items()
        if name not in names and name not in RENAMED
        for text in texts_of_flag
    ]
    return [*arguments, *before, *added, *(("--", *behind) if behind else ())]


def command_line_with_flags(
    command: str, argv: Sequence[str], specs: Sequence[FlagSpec], **flags: object
) -> str:
    """Returns a cnnbench command line with the values in `flags`. True becomes a flag without a
    value.

    The flags are appended, because the last value is used and a flag file may also set
    the flags.
    """
    words = replace_flags(argv, specs, flags, flags_to_arguments(flags))
    return shlex.join(["cnnbench", command, *words])


@contextlib.contextmanager
def printing_resume_command(
    reporter: ChildProcessReporter,
    command: str,
    argv: Sequence[str],
    specs: Sequence[FlagSpec],
    known: Callable[[], str] = str,
    **flags: object,
) -> Iterator[None]:
    """Context manager: if its block is interrupted, prints the results so far, which `known`
    returns, and the command line that continues the campaign; see `command_line_with_flags`.
    """
    try:
        yield
    except KeyboardInterrupt:
        write_or_print_output(None, known())
        line = command_line_with_flags(command, argv, specs, **flags, resume=True)
        reporter.notice(f"to go on: {line}")
        raise
