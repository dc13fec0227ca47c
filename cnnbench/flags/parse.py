"""Parsing of command lines into ``Params``."""

from __future__ import annotations

import io
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from cnnbench.base.reading import read_text
from cnnbench.base.text.messages import nearest
from cnnbench.base.urls import local
from cnnbench.errors import FlagError, UsageError
from cnnbench.flags.declare import FlagSpec, parted
from cnnbench.flags.params import ACCEPTED, Params, check_fp16
from cnnbench.flags.retired import REMOVED, RENAMED, obsolete_notices, renamed_notices

FLAG_FILE = "flagfile"
_IGNORED = "undefok"  # absl's flag that names flags to be ignored where they are unknown
_MOST_NESTED = 64

_OF_JOBS = {
    **dict.fromkeys(("workers", "ps", "controller"), "launch, ab, explain and tune"),
    "towers": "launch; --num_gpus sets those of a worker",
}

Word: TypeAlias = "tuple[str, str, tuple[str, ...]]"
"""Name of a flag, or "" for an argument; value as text; and both as they were typed."""


@dataclass(frozen=True)
class ParsedArgs:
    """A parsed command line: parameters, names of the given flags, lines for stderr."""

    params: Params
    explicit_flags: tuple[str, ...]
    notices: tuple[str, ...]


def parse_args(argv: Sequence[str]) -> ParsedArgs:
    """Parses the arguments of ``cnnbench run``; UsageError names the wrong one."""
    words = _read(argv, ACCEPTED)
    given = _flags_only(words, ACCEPTED)
    if {"precision", "use_fp16"} <= given.keys():  # Params makes them agree
        check_fp16(given["precision"], given["use_fp16"])
    notices = obsolete_notices(given) + renamed_notices({name for name, _, _ in words})
    params, _ = parted(Params, given)
    return ParsedArgs(params, tuple(given), notices)


def parse_flags(argv: Sequence[str], specs: Iterable[FlagSpec]) -> dict[str, Any]:
    """Parses a command line of nothing but flags to values by name, in the order of ``specs``."""
    by_name = {spec.name: spec for spec in specs}
    return _flags_only(_read(argv, by_name), by_name)


def parse_command(
    argv: Sequence[str], specs: Iterable[FlagSpec]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Parses flags and arguments in any order to values by name, and arguments.

    All after ``--`` are arguments.
    """
    by_name = {spec.name: spec for spec in specs}
    texts = _texts(_read(argv, by_name), by_name)
    if "" in texts[""]:
        raise UsageError("an argument is empty; is a variable of the shell not set?")
    return _given(texts, by_name), tuple(map(local, texts[""]))


def split_at_dashes(argv: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """The words before ``--`` and those after it."""
    at = list(argv).index("--") if "--" in argv else len(argv)
    return argv[:at], argv[at + 1 :]


def split(argv: Iterable[str], specs: Mapping[str, FlagSpec]) -> Iterator[Word]:
    """Splits words as absl does: one dash or two, ``=`` or a space before a value, ``--noflag``.

    An unknown flag, such as one of another version, takes the next word unless that has a dash.
    """
    words = deque(argv)
    while words:
        word = words.popleft()
        name, equals, text = re.sub("^--?", "", word).partition("=")
        if not word.startswith("-") or not name:
            yield "", word, (word,)
            continue
        spec = specs.get(RENAMED.get(name, name))
        positive = name.removeprefix("no")
        negated = specs.get(RENAMED.get(positive, positive)) if spec is None else None
        if negated is not None and negated.kind == "boolean":
            if equals:
                raise UsageError(f"{word} does not take an argument")
            yield positive, "false", (word,)
        elif equals:
            yield name, text, (word,)
        elif name != FLAG_FILE and (alone := _alone(spec, words[0] if words else "-")):
            yield name, alone, (word,)
        elif words:
            text = words.popleft()
            yield name, text, (word, text)
        else:
            raise UsageError(f"--{name} needs a value: write --{name}=value")


def _alone(spec: FlagSpec | None, after: str) -> str:
    """The value of a flag that is given without one; "" if the word after it is its value."""
    if spec is None:
        return "true" if after.startswith("-") else ""
    if spec.kind == "boolean":
        return "true"
    return spec.alone if spec.alone and after not in spec.choices else ""


def with_flag_files(words: Iterable[Word], specs: Mapping[str, FlagSpec]) -> Iterator[Word]:
    """The words with each --flagfile replaced by the flags in the file."""
    for word in words:
        name, path, _ = word
        if name == FLAG_FILE:
            yield from split(_lines_of(path.strip(), ()), specs)
        else:
            yield word


def _read(argv: Sequence[str], specs: Mapping[str, FlagSpec]) -> list[Word]:
    before, behind = split_at_dashes(argv)
    flags = with_flag_files(split(before, specs), specs)
    return [*flags, *(("", word, (word,)) for word in behind)]


def _texts(words: Sequence[Word], specs: Mapping[str, FlagSpec]) -> dict[str, list[str]]:
    """Values of the flags as text by name, and arguments as those of ""."""
    ignored = [name for flag, text, _ in words if flag == _IGNORED for name in text.split(",")]
    texts: dict[str, list[str]] = {"": []}
    for name, text, _ in words:
        known = RENAMED.get(name, name)
        if known in specs or not name:
            texts.setdefault(known, []).append(text)
        elif name != _IGNORED and name not in ignored and name.removeprefix("no") not in ignored:
            raise UsageError(_unknown_flag(name, specs))
    return texts


def _given(texts: Mapping[str, list[str]], specs: Mapping[str, FlagSpec]) -> dict[str, Any]:
    """Values of the flags by name, in the order of `specs`."""
    given = {}
    for name, spec in specs.items():
        if name in texts:
            *_, last = every = texts[name]
            given[name] = tuple(map(spec.parse, every)) if spec.repeated else spec.parse(last)
            if not spec.checked_late:
                spec.check(given[name])
    return given


def _flags_only(words: Sequence[Word], specs: Mapping[str, FlagSpec]) -> dict[str, Any]:
    texts = _texts(words, specs)
    switch = ""  # the word before, if it is a boolean flag without "="
    for name, text, (word, *_) in words:
        if not name:
            raise UsageError(_stray(text, switch))
        is_switch = name in specs and specs[name].kind == "boolean" and "=" not in word
        switch = name if is_switch else ""
    return _given(texts, specs)


def _stray(argument: str, switch: str) -> str:
    if not switch:
        return f"stray argument {argument!r}: flags are written --flag=value"
    said = argument.lower()
    value = said if said in ("true", "false") else f"true or --{switch}=false"
    return f"stray argument {argument!r} after --{switch}: write --{switch}={value}"


def _lines_of(path: str, around: tuple[str, ...]) -> Iterator[str]:
    """The flags in a file; `around` are the files that include it, the outermost first."""
    if not path:
        return
    file = os.path.expanduser(local(path, FLAG_FILE))
    if len(around) >= _MOST_NESTED:
        raise FlagError(FLAG_FILE, path, f"is nested deeper than {_MOST_NESTED} flag files")
    text = read_text(file, flag=FLAG_FILE)
    real = os.path.realpath(file)
    if real in around:
        raise FlagError(FLAG_FILE, path, "leads back to itself")
    for line in io.StringIO(text, newline=None):
        name, equals, inner = line.lstrip("-").partition("=")
        if line.startswith("-") and equals and name == FLAG_FILE:
            yield from _lines_of(inner.strip(), (*around, real))
        elif line.strip() and not line.startswith(("#", "//")):
            yield line.strip()


def _unknown_flag(name: str, known: Mapping[str, FlagSpec]) -> str:
    if name.removeprefix("no") in known:
        return f"--{name}: only a boolean has a --no form, write --{name[2:]}=value"
    if name in REMOVED:
        return f"--{name} was removed; {REMOVED[name]}"
    if name in _OF_JOBS:
        return f"--{name} is no flag of a run, but of cnnbench {_OF_JOBS[name]}"
    flag, space, value = name.partition(" ")
    if space and flag in known:  # a line of a flag file is one word
        return f"--{name}: a value in the same word follows an =, write --{flag}={value.strip()}"
    switches = (f"no{n}" for n, spec in known.items() if spec.kind == "boolean")
    close = nearest(name, [*known, *switches])
    of_runs = ACCEPTED.keys() <= known.keys()
    listed = "cnnbench run --help lists those of runs" if of_runs else "--help lists the others"
    hint = f"did you mean --{close}?" if close else listed
    return f"unknown flag --{name}; {hint}"
