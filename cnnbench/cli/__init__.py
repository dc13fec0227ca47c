"""The command line of cnnbench: runs a command and converts its result to an exit code."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import traceback
from collections.abc import Callable, Sequence, Set
from importlib import import_module
from itertools import zip_longest
from types import ModuleType
from typing import NoReturn, cast

from cnnbench.base import interrupts, plugins
from cnnbench.base.terminal import (
    print_error,
    print_result,
    print_warning,
    silence_warnings,
    tolerating_output_errors,
)
from cnnbench.base.text import suggestion
from cnnbench.cli.overview import COMMANDS, overview_text
from cnnbench.errors import BenchmarkError, ExitCode, UsageError, exhausted, text_of
from cnnbench.records.files import report_failed_writes
from cnnbench.run.runtime import loading, supervisor

DEFAULT_COMMAND = "run"

# The exit code that a shell reports for a program ended by SIGPIPE: `cnnbench models | head -1`.
BROKEN_PIPE = 141

# For all other commands, exit code 1 may mean a regression. OpenBLAS, which NumPy loads, also exits
# with 1 if it gets too little memory.
_NEVER_JUDGING = (
    "allreduce",
    "completion",
    "data",
    "docs",
    "env",
    "import",
    "launch",
    "models",
    "roofline",
    "run",
)

_QUIET = "quiet_conditions"
_EVERYTHING = "helpfull"
_XML = "helpxml"
_HELP_FLAGS = frozenset({"help", "help=true", _EVERYTHING, _XML, "helpshort", "h", "?"})


def entry_point() -> NoReturn:
    """Main function of a process: runs the command in `sys.argv`, and exits with its exit code."""
    _ensure_streams()
    # `fork_before_plugins` comes first, because it forks this process.
    plugins.before_loading += (
        supervisor.fork_before_plugins,
        loading.hook_early_import,
    )
    with supervisor.forks_allowed():
        code = _run_command(sys.argv[1:])
    # At exit, Python would wait for non-daemon threads, whose calls may never return.
    # Python would also destroy TensorFlow while threads of inputs still use it.
    others = set(threading.enumerate()) - {threading.main_thread()}
    early = code in (ExitCode.FAILED, ExitCode.INTERRUPTED)
    is_held = any(t.name.startswith("cnnbench-") or (early and not t.daemon) for t in others)
    supervisor.exit_within_two_seconds(code)
    # After an interrupt in `exec`, which dataclasses call, Python would end itself by SIGINT.
    if supervisor.state.connected or is_held or interrupts.was_interrupted():
        supervisor.exit_without_cleanup(code)
    gc.freeze()  # If TensorFlow is loaded, garbage collection at exit takes a second.
    sys.exit(code)


def _ensure_streams() -> None:
    """Connects closed standard streams (``2>&-``) to the null device.

    Otherwise the next file to be opened, such as a record, would get the stream's number, and the
    output of native libraries. Standard output is only readable: writing to it still fails.
    """
    for descriptor, mode, name in ((0, "r", "stdin"), (1, "w", "stdout"), (2, "w", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            # `open` takes the lowest free number, which is the number of the closed stream.
            os.open(os.devnull, os.O_WRONLY if descriptor == 2 else os.O_RDONLY)
            setattr(sys, name, open(descriptor, mode))  # noqa: SIM115


def main(argv: Sequence[str]) -> int:
    """Runs one cnnbench command with its arguments; returns a `cnnbench.errors.ExitCode`.

    Errors are printed as one line on stderr, and unexpected errors with a traceback. If standard
    output could not be written, a successful command counts as failed. Signal handlers are restored
    at the end.
    """
    with interrupts.handling_signals():
        return _run_command(argv)


def _run_command(argv: Sequence[str]) -> int:
    """Runs one command, and returns its exit code. Later signals cannot change the exit code."""
    with tolerating_output_errors() as stdout:
        try:
            interrupts.begin_command()
            status = _run_and_report(argv)
            if stdout is not None:
                before = stdout.lost
                stdout.flush()
                # If `before` is set, the exit code of the command already reports this error.
                if isinstance(stdout.lost, BrokenPipeError):
                    status = status or (0 if before else BROKEN_PIPE)
                elif stdout.lost is not None:
                    status = status or int(ExitCode.FAILED)
            if interrupts.conclude_command():
                raise KeyboardInterrupt
            return status
        except KeyboardInterrupt:
            return _print_failure("interrupted", ExitCode.INTERRUPTED)


def _run_and_report(argv: Sequence[str]) -> int:
    try:
        with plugins.reporting_plugin_errors(UsageError):
            status = int(_dispatch(argv))
            report_failed_writes()
            return status
    except KeyboardInterrupt:
        raise
    except UsageError as error:
        return _print_failure(text_of(error), ExitCode.USAGE, error.frames)
    except BenchmarkError as error:
        return _print_failure(text_of(error), ExitCode.FAILED, error.frames)
    except BrokenPipeError:
        return BROKEN_PIPE
    # Without this clause, Python would exit with 1, which means a regression.
    except BaseException as error:
        reason = exhausted(error)
        if not reason:
            traceback.print_exc()
            reason = f"{type(error).__name__}: {text_of(error)}"
        place = plugins.plugin_location_of_error(error)
        return _print_failure(f"{place}: {reason}" if place else reason, ExitCode.FAILED)


def _version_text() -> str:
    from cnnbench.machine.repository import cnnbench_checkout
    from cnnbench.version import __version__

    own = cnnbench_checkout()
    if own.revision is None:
        return f"cnnbench {__version__}"
    changed = " with changes" if own.dirty else ""
    return f"cnnbench {__version__} (commit {own.revision[:12]}{changed})"


def _dispatch(argv: Sequence[str]) -> int:
    if argv and argv[0] in ("--version", "-version"):
        print_result(_version_text())
        return ExitCode.OK
    command, arguments = _split_command(argv)
    asked = {word.lstrip("-") for word in arguments if word.startswith("-")} & _HELP_FLAGS
    if asked:
        print_result(_help_text(command, argv, asked))
        return ExitCode.OK
    silence_warnings(_quiet_names(arguments))
    if command not in _NEVER_JUDGING:
        supervisor.fork_before_plugins()  # The command imports NumPy, which may end the process.
    return cast("Callable[[Sequence[str]], int]", _import_command(command).main)(arguments)


def _quiet_names(words: Sequence[str]) -> frozenset[str]:
    """The names of warnings in --quiet_conditions, which this process does not print.

    The flag may precede or follow "--". An invalid name is refused when the flag is parsed.
    """
    given = [
        text if equals else following
        for word, following in zip_longest(words, words[1:], fillvalue="")
        for flag, equals, text in [word.partition("=")]
        if flag.lstrip("-") == _QUIET
    ]
    if not given:
        return frozenset()
    from cnnbench.machine.checks import parse_silenced

    with contextlib.suppress(UsageError):
        return parse_silenced(given[-1])
    return frozenset()


def _import_command(command: str) -> ModuleType:
    return import_module(f"cnnbench.cli.commands.{command}")


def _split_command(argv: Sequence[str]) -> tuple[str, Sequence[str]]:
    if not argv or argv[0].startswith("-"):
        return DEFAULT_COMMAND, argv
    command, arguments = argv[0], argv[1:]
    if command == "help":
        return _split_command(arguments[:1])[0], ("--help",)
    if command not in COMMANDS:
        hint = suggestion(command, COMMANDS, f"there are {', '.join(COMMANDS)}")
        raise UsageError(f"unknown command {command!r}; {hint}")
    return command, arguments


def _help_text(command: str, argv: Sequence[str], asked: Set[str]) -> str:
    """The help text of a command, as XML if requested, or an overview of all commands."""
    if len(argv) == 1 and asked.isdisjoint({_EVERYTHING, _XML}):
        return overview_text()  # Neither flags nor plug-ins are loaded.
    from cnnbench.flags.help import all_sections, command_help, run_help, xml_help
    from cnnbench.flags.parse import load_plugins

    if command != DEFAULT_COMMAND:
        about, flags, *end = _import_command(command).HELP
        return xml_help(flags) if _XML in asked else command_help(about, flags, *end)
    load_plugins(argv)
    if _XML in asked:
        return xml_help(all_sections())
    names = [word for word in argv[:2] if word != "help"]
    if _EVERYTHING in asked or names[:1] == [DEFAULT_COMMAND]:
        return run_help(obsolete=_EVERYTHING in asked)
    return overview_text()


def _print_failure(message: str, code: ExitCode, frames: Sequence[str] = ()) -> int:
    interrupts.conclude_command()  # Later interrupts must not print another message.
    report_failed_writes(print_warning)
    print_error(" ".join(message.split()), *frames)
    return int(code)
