"""Command lines of the scripts, whose options are declared and parsed like flags of cnnbench."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

from cnnbench.base.terminal import redirect_to_null
from cnnbench.errors import ExitCode, UsageError
from cnnbench.flags import parse_command
from cnnbench.flags.declare import specs_of
from cnnbench.flags.help import command_help

T = TypeVar("T")


def parse_options(
    group: type[T],
    about: str | None,
    argv: Sequence[str],
    check: Callable[[T], None] = lambda options: None,
) -> T:
    """Parses the options of a script; --help and errors end the process with status 0 or 2.

    Args:
      group: dataclass of the options.
      about: text above the options in the output of --help.
      check: function that raises UsageError if options contradict each other.
    """
    specs = specs_of(group)  # type: ignore[arg-type]
    if {"--help", "-h"} & {*argv}:
        print(command_help(about or "", [("Options", specs)]))
        sys.exit(ExitCode.OK)
    with _exit_on_usage_error():
        given, stray = parse_command(argv, specs)
        if stray:
            raise UsageError(f"stray argument {stray[0]!r}: options are written --option=value")
        options = group(**given)
        check(options)
    return options


def run_script(main: Callable[[Sequence[str]], int], about: str | None = None) -> NoReturn:
    """Runs a script and ends the process.

    If the reader of standard output has closed the pipe (``| head``), the exit status is the status
    that a shell reports for SIGPIPE.

    Args:
      main: function of the arguments that returns the exit status. If it raises UsageError, the
        message is printed in one line.
      about: the text of --help; None if `main` declares options (`parse_options`).
    """
    try:
        try:
            if about is not None and {"--help", "-h"} & {*sys.argv[1:]}:
                print(about)
                sys.exit(ExitCode.OK)
            with _exit_on_usage_error():
                sys.exit(main(sys.argv[1:]))
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        redirect_to_null(sys.stdout)
        sys.exit(128 + signal.SIGPIPE)


@contextlib.contextmanager
def _exit_on_usage_error() -> Iterator[None]:
    """Prints a UsageError that is raised in a ``with`` statement; exits with status 2."""
    try:
        yield
    except UsageError as error:
        print(f"{Path(sys.argv[0]).stem}: error: {error}", file=sys.stderr)
        sys.exit(ExitCode.USAGE)
