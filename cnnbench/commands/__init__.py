"""The sub-commands of ``cnnbench``, one module each, imported when chosen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from cnnbench.text.terminal import print_message

if TYPE_CHECKING:
    from cnnbench.compare import Skipped

COMMANDS: dict[str, str] = {
    "run": "measure training, evaluation or inference (may be left out)",
    "models": "list the models with their sizes",
    "data": "make and check data sets",
    "allreduce": "measure and check reductions between devices by themselves",
    "compare": "judge two sets of run records: faster, slower, same or unknown",
    "ab": "measure two sides in turn and judge the second against the first",
    "sweep": "run a suite of configurations, each run in a process of its own",
    "report": "write results as one HTML page, Markdown or a table",
    "history": "follow a metric over commits and find where it took a step",
    "env": "show the machine and software a record would name",
}
"""Name and one line of help. The module is cnnbench.commands.<name>; it has main(argv) -> int
and, but for run, help_text() -> str."""

NOT_YET: tuple[str, ...] = ("launch",)
"""Commands that are planned and answer "not available yet"."""


def notice(message: str) -> None:
    """Prints a line on stderr that is no error: ``cnnbench: notice: ...``."""
    print_message(f"notice: {message}")


def warn_of_skipped(skipped: Iterable[Skipped]) -> None:
    """Names files that gave no record on stderr: ``cnnbench: warning: skipped ...``."""
    for one in skipped:
        print_message(f"warning: skipped {one}")


def split_at_dashes(argv: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """The arguments before ``--`` and those after it."""
    if "--" not in argv:
        return argv, ()
    at = list(argv).index("--")
    return argv[:at], argv[at + 1 :]
