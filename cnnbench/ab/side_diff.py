"""What an experiment is about: the facts that its sides are meant to differ in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cnnbench.ab.flags import words
from cnnbench.ab.side import Side
from cnnbench.flags import FLAGS

_SWITCHES = {f"no{spec.name}": spec.name for spec in FLAGS if spec.kind == "boolean"}

# An interpreter of its own is one with other packages.
_OF_PYTHON = ("tensorflow",)


def differing(a: Side, b: Side) -> tuple[str, ...]:
    """Names and groups of facts, as --allow_different takes them, in which the sides differ."""
    flags = [dict(_named(words(side))) for side in (a, b)]
    names = dict.fromkeys(name for side in flags for name in side)
    found = [name for name in names if flags[0].get(name) != flags[1].get(name)]
    variables = {*a.variables.items()} ^ {*b.variables.items()}
    found += [f"env_{name}" for name in sorted({name for name, _ in variables})]
    if a.python != b.python:
        found += _OF_PYTHON
    return tuple(found)


def _named(flags: Sequence[str]) -> Iterable[tuple[str, str]]:
    """Flags by name, whatever version of cnnbench they are of; a later one counts."""
    waiting = ""
    for word in (*flags, "-"):
        if not word.startswith("-"):
            yield waiting, word
            waiting = ""
            continue
        if waiting:
            off = waiting in _SWITCHES
            yield _SWITCHES.get(waiting, waiting), "false" if off else "true"
        name, equals, value = word.lstrip("-").partition("=")
        waiting = "" if equals else name
        if equals:
            yield name, value
