"""``cnnbench completion SHELL``: a script that completes this command line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module

from cnnbench.base.text.terminal import print_result
from cnnbench.cli.commands import COMMANDS
from cnnbench.cli.commands.shells import Command, Flag, bash, zsh
from cnnbench.errors import ExitCode, UsageError
from cnnbench.flags import FLAGS, parse_command
from cnnbench.flags.declare import FlagSpec
from cnnbench.flags.retired import OBSOLETE

_SHELLS = {"bash": bash, "zsh": zsh}

_ABOUT = """\
Usage: cnnbench completion bash|zsh

Prints a script that completes commands, flags, the values of flags that have a list of them, and
names of files and folders. It starts no Python while you type; print it again after an update.

  cnnbench completion bash > ~/.local/share/bash-completion/completions/cnnbench
  cnnbench completion zsh > "${fpath[1]}/_cnnbench"

The first needs the package bash-completion; without it: source <(cnnbench completion bash).
"""
HELP = (_ABOUT, ())

_OF_RUNS = ("run", "strategies")
"""Commands that take all flags of runs before --; the others take them behind."""


def completions() -> tuple[str, ...]:
    """What may stand as the argument."""
    return tuple(_SHELLS)


def main(argv: Sequence[str]) -> int:
    """Prints the script.

    Raises:
      UsageError: not the name of one shell.
    """
    _, names = parse_command(argv, ())
    if len(names) != 1 or names[0] not in _SHELLS:
        what = " ".join(names) or "nothing"
        raise UsageError(f"cnnbench completion takes one of {', '.join(_SHELLS)}, not {what!r}")
    print_result(_SHELLS[names[0]](tables()).rstrip("\n"))
    return ExitCode.OK


def tables() -> tuple[Command, ...]:
    """What every command takes, from the declarations of its flags."""
    found = [Command("help", "explain a command", (), tuple(COMMANDS))]
    for name, about in COMMANDS.items():
        specs = [*FLAGS, *OBSOLETE] if name in _OF_RUNS else []
        words: tuple[str, ...] = ()
        if name != "run":
            module = import_module(f"cnnbench.cli.commands.{name}")
            specs = [spec for _, those in module.HELP[1] for spec in those] + specs
            words = getattr(module, "completions", tuple)()
        found.append(Command(name, about, tuple(_flags(specs)), words))
    return tuple(found)


def _flags(specs: Iterable[FlagSpec]) -> Iterable[Flag]:
    """The flags as shells need them, none twice."""
    for spec in {spec.name: spec for spec in specs}.values():
        values = spec.choices or tuple(spec.known() if spec.known else ())
        yield Flag(
            name=spec.name,
            is_switch=spec.kind == "boolean",
            # Up to the first sentence's end.
            about=spec.help.partition(". ")[0].rstrip("."),
            values=tuple(value for value in values if value),
            path=spec.path,
        )
