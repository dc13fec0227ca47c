"""``cnnbench env``: what a record would say about this machine."""

from __future__ import annotations

import json
from collections.abc import Sequence

from cnnbench.errors import ExitCode
from cnnbench.params import parse_flags

HELP = """\
Usage: cnnbench env

Prints the facts about machine and software that go into a run record, one per line.
A fact that cannot be found out is left out.
"""


def main(argv: Sequence[str]) -> int:
    """Prints the facts of this machine.

    Raises:
      UsageError: there are arguments.
    """
    parse_flags(argv, ())
    from cnnbench import environment

    facts = environment.collect()
    width = max(map(len, facts), default=0)
    for name, value in sorted(facts.items()):
        print(f"{name:<{width}}  {_text(value)}")
    return ExitCode.OK


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
