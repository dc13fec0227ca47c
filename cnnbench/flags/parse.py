"""Parses command lines into flag values."""

from __future__ import annotations

import io
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from cnnbench.base import plugins
from cnnbench.base.files import read_text
from cnnbench.base.text import nearest_word
from cnnbench.base.urls import local_path
from cnnbench.errors import FlagError, UsageError
from cnnbench.flags.declare import FlagSpec
from cnnbench.flags.groups.model import refuse_fp16_conflict
from cnnbench.flags.groups.optimizer import REGISTRIES
from cnnbench.flags.obsolete import RENAMED, check_obsolete_flags, renamed_notices
from cnnbench.flags.params import ACCEPTED, SPECS, Params, load_plugin_flags, unset_notices
from cnnbench.records.files import IS_INPUT, are_same_file

FLAG_FILE = "flagfile"
_MOST_NESTED = 64
_TOLERATE = "undefok"
_NEEDS_VALUE = "{0} needs a value: write {0}=value"

BeforePlugins = Callable[[Mapping[str, Any]], object]
"""Function that is called with the values of all known flags before plug-ins are loaded, because
plug-ins may add flags.
"""

_OF_JOBS = {
    **dict.fromkeys(("workers", "ps", "controller"), "launch, ab and explain"),
    "towers": "launch; in a run, --num_gpus is the number of towers of a worker",
}


@dataclass(frozen=True)
class ParsedArgs:
    """The flags that the user gave for a run.

    Attributes:
      given: values by name, including obsolete flags.
      notices: lines for stderr.
    """

    given: Mapping[str, Any]
    notices: tuple[str, ...] = ()

    @cached_property
    def params(self) -> Params:
        """The values of all flags of the run, including defaults. FlagError if --use_fp16
        contradicts --precision.
        """
        values = self.given
        # `Params` would silently change one of the two flags to match the other, so the check comes
        # first.
        if {"precision", "use_fp16"} <= values.keys():
            refuse_fp16_conflict(values["precision"], values["use_fp16"])
        return Params.from_dict({name: values[name] for name in values if name in SPECS})

    def including(self, values: Mapping[str, Any]) -> ParsedArgs:
        """Returns a copy with additional flags, or with different values of given flags."""
        all_values = {**self.given, **values}
        return replace(
            self, given={name: all_values[name] for name in ACCEPTED if name in all_values}
        )


def parse_args(
    argv: Sequence[str],
    *,
    of_run: bool = False,
    before_plugins: BeforePlugins = lambda values: None,
) -> ParsedArgs:
    """Parses the arguments of ``cnnbench run``. UsageError names the invalid argument.

    Pass `of_run` if the caller supports --only_check_args. See `BeforePlugins`.
    """
    values, _, texts = _parse_all(argv, ACCEPTED, before_plugins=before_plugins)
    notices = check_obsolete_flags(values, of_run=of_run) + renamed_notices(texts)
    return ParsedArgs(values, notices + unset_notices(values))


def args_from_values(values: Mapping[str, Any]) -> ParsedArgs:
    """Creates the parsed arguments of a run from flag values by name, in the order of the help."""
    return ParsedArgs(values, check_obsolete_flags(values))


def load_named_plugins(texts: Mapping[str, Sequence[str]]) -> Mapping[str, FlagSpec]:
    """Loads the plug-ins that the given flags name, and returns `added_flags`.

    `texts` are the texts of the given flags by name.
    """
    naming = {name: texts[name] for name in (plugins.FLAG, *REGISTRIES) if name in texts}
    return load_plugin_flags(_parse_values(naming, SPECS))


def load_plugins(argv: Sequence[str]) -> None:
    """Loads the plug-ins that a command line names. Does not check its other words."""
    specs = {plugins.FLAG: SPECS[plugins.FLAG]}
    plugins.load_plugins_of_flags(_parse_values(split_command_line(argv, specs)[0], specs))


def parse_flag_texts(texts: Mapping[str, str], specs: Mapping[str, FlagSpec]) -> dict[str, Any]:
    """Parses texts of flags: values by name, in the order of `specs`. FlagError if invalid."""
    return _parse_values({name: [text] for name, text in texts.items()}, specs)


def parse_flags(argv: Sequence[str], specs: Iterable[FlagSpec]) -> dict[str, Any]:
    """Parses a command line of flags alone. Returns values by name, in the order of ``specs``."""
    return _parse_all(argv, {spec.name: spec for spec in specs})[0]


def parse_command(
    argv: Sequence[str],
    specs: Iterable[FlagSpec],
    before_plugins: BeforePlugins = lambda values: None,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Parses a command line with flags and arguments in any order. Returns the flag values by name,
    and the arguments.

    All words after ``--`` are arguments. See `BeforePlugins`.
    """
    by_name = {spec.name: spec for spec in specs}
    values, arguments, _ = _parse_all(
        argv, by_name, only_flags=False, before_plugins=before_plugins
    )
    return values, tuple(map(local_path, arguments))


def split_at_double_dash(argv: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Splits the words of a command line at ``--`` into the words before and the words after it."""
    at = list(argv).index("--") if "--" in argv else len(argv)
    return argv[:at], argv[at + 1 :]


def split_command_line(
    argv: Sequence[str], specs: Mapping[str, FlagSpec]
) -> tuple[dict[str, list[str]], list[str]]:
    """Splits a command line into the texts of the known flags and all other words, as absl does.
    --flagfile is replaced by the flags in the file.

    Args:
      specs: declared flags by name. Old names are also recognised.

    Returns:
      Texts of the given flags by name, in order, and the other words: unknown flags that --undefok
      does not name, arguments, ``--`` and the words after it. A flag without a value has the text
      "true" or "false". A flag that was given by its old name is included by both names.
    """
    before, behind = split_at_double_dash(argv)
    known = {name: name for name in specs}
    known |= {spec.short: name for name, spec in specs.items() if spec.short}
    known |= {old: new for old, new in RENAMED.items() if new in specs}
    switches = {n for n, spec in specs.items() if spec.kind.name == "boolean" or spec.alone}
    texts: dict[str, list[str]] = {}
    others: list[tuple[str, str]] = []  # Words, with the unknown flag's name or "".
    tolerated: set[str] = set()
    read: list[str] = []
    words = iter([*_expand(before, read)])
    for word in words:
        if word == "--":  # A line of a flag file.
            others += (("", rest) for rest in (word, *words))
            break
        typed, equals, text = word.partition("=")
        name = re.sub("^--?", "", typed) if word.startswith("-") else ""
        if name not in known and known.get(name.removeprefix("no")) in switches:
            if equals:
                raise UsageError(f"{word} does not take an argument")
            name, text = name.removeprefix("no"), "false"
        elif not equals and known.get(name) in switches:
            text = "true"
        elif not equals and (name in known or name == _TOLERATE):
            following = [*itertools.islice(words, 1)]
            if not following:
                raise UsageError(_NEEDS_VALUE.format(typed))
            (text,) = following
        if name in known:
            given = texts.setdefault(known[name], [])
            given.append(text)
            if name in RENAMED:
                texts[name] = given
        elif name == _TOLERATE:
            unknown = [part.strip() for part in text.split(",") if part.strip()]
            tolerated |= {*unknown, *(f"no{name}" for name in unknown)}
        else:
            others.append((name, word))
    rest = [word for name, word in others if name not in tolerated]
    texts = {name: texts[name] for name in (*specs, *RENAMED) if name in texts}
    _refuse_as_outputs(read, texts, specs)
    return texts, [*rest, *(("--", *behind) if behind else ())]


def expand_flag_files(argv: Sequence[str]) -> list[str]:
    """Returns a command line in which each --flagfile before ``--`` is replaced by the flags in the
    file. Files such as pipes can be read only once.
    """
    before, _ = split_at_double_dash(argv)
    read: list[str] = []
    words = [*_expand(before, read)]
    if read:
        _refuse_as_outputs(read, split_command_line(words, ACCEPTED)[0], ACCEPTED)
    return [*words, *argv[len(before) :]]


def _refuse_as_outputs(
    flag_files: Sequence[str], texts: Mapping[str, Sequence[str]], specs: Mapping[str, FlagSpec]
) -> None:
    """Raises FlagError if another flag names one of the flag files."""
    for name in (name for name in texts if name in specs and specs[name].path.startswith("file")):
        if any(are_same_file(texts[name][-1], file) for file in flag_files):
            raise FlagError(name, texts[name][-1], IS_INPUT)


def _expand(
    words_given: Iterable[str], read: list[str], around: tuple[str, ...] = ()
) -> Iterator[str]:
    """Yields the words of a command line, with each --flagfile replaced by the flags in the file.

    The path of each flag file is added to `read`, except pipes. `around` are the flag files that
    contain the words. absl's implementation is not used: it would block on a pipe without a writer,
    only warn about a file that includes itself, and decode by the locale.
    """
    words = iter(words_given)
    for word in words:
        flag, equals, path = word.partition("=")
        if flag not in (f"-{FLAG_FILE}", f"--{FLAG_FILE}"):
            yield word
            continue
        following = [path] if equals else [*itertools.islice(words, 1)]
        if not following:
            raise UsageError(_NEEDS_VALUE.format(flag))
        path = following[0].strip()
        if len(around) >= _MOST_NESTED:
            reason = f"flag files are nested more than {_MOST_NESTED} levels deep"
            raise FlagError(FLAG_FILE, path, reason)
        file = os.path.expanduser(local_path(path, FLAG_FILE))
        text = read_text(file, flag=FLAG_FILE) if path else ""
        real = os.path.realpath(file)
        if real in around:
            raise FlagError(FLAG_FILE, path, "includes itself")
        if os.path.isfile(real):
            read.append(real)
        lines = (line for line in io.StringIO(text, newline=None) if line[:1] != "#")
        flags = (line.strip() for line in lines if line.strip() and line[:2] != "//")
        yield from _expand(flags, read, (*around, real))


def _parse_values(
    texts: Mapping[str, Sequence[str]], specs: Mapping[str, FlagSpec]
) -> dict[str, Any]:
    """Parses and checks the texts of flags. Returns the values by name, in the order of `specs`. If
    a flag is given several times, the last value is used.

    A flag with `repeated` keeps all values. Earlier texts are also parsed, so that errors are
    reported.
    """
    values_by_name = {}
    for name in (name for name in specs if name in texts):
        spec = specs[name]
        words = (spec.alone if spec.alone and t == "true" else t for t in texts[name])
        values = [spec.parse(word) for word in words]
        values_by_name[name] = tuple(itertools.chain(*values)) if spec.repeated else values[-1]
        if not spec.checked_late:
            spec.check(values_by_name[name])
    return values_by_name


def _parse_all(
    argv: Sequence[str],
    specs: Mapping[str, FlagSpec],
    *,
    only_flags: bool = True,
    before_plugins: BeforePlugins = lambda values: None,
) -> tuple[dict[str, Any], Sequence[str], Mapping[str, Sequence[str]]]:
    """Returns the flag values by name in the order of `specs`, the arguments, and the texts of the
    flags.

    The arguments and texts are as in `split_command_line`. If there are unknown flags, loads the
    plug-ins that the command line names, because plug-ins may add flags.
    """
    # Flags that plug-ins have added are left out: an earlier command line of this process may have
    # named these plug-ins.
    others = {name for table in REGISTRIES.values() for name in table.plugin_constants}
    specs = {name: spec for name, spec in specs.items() if name not in others}
    texts, rest = split_command_line(argv, specs)
    words, behind = split_at_double_dash(rest)
    if any(map(_is_flag, words)) and "optimizer" in specs and _names_plugins(texts):
        before_plugins(_parse_values(texts, specs))
        specs_added = load_named_plugins(texts)
        specs = {**specs, **specs_added}
        more, rest = split_command_line(rest, specs_added)
        texts = {**texts, **more}
        words, behind = split_at_double_dash(rest)
    for word in filter(_is_flag, words):
        raise UsageError(_unknown_message(word, specs))
    arguments = [*words, *behind]
    for argument in arguments:
        if only_flags:
            raise UsageError(_stray_message(argument, argv, specs))
        if not argument:
            raise UsageError("an argument is empty; perhaps a shell variable is not set")
    return _parse_values(texts, specs), arguments, texts


def _is_flag(word: str) -> bool:
    return word.startswith("-") and bool(word.strip("-"))


def _names_plugins(texts: Mapping[str, Sequence[str]]) -> bool:
    """Whether the given flags name a plug-in. A plug-in may declare additional flags."""
    names = ((texts.get(owner, [""])[-1], table) for owner, table in REGISTRIES.items())
    return plugins.FLAG in texts or any(name and name not in table for name, table in names)


def _stray_message(argument: str, argv: Sequence[str], specs: Mapping[str, FlagSpec]) -> str:
    words = ["--", *argv]
    switch = words[words.index(argument) - 1].lstrip("-") if argument in argv else ""
    if switch not in specs or specs[switch].kind.name != "boolean":
        return f"stray argument {argument!r}: flags are written --flag=value"
    lower = argument.lower()
    value = lower if lower in ("true", "false") else f"true or --{switch}=false"
    return f"stray argument {argument!r} after --{switch}: write --{switch}={value}"


def _unknown_message(word: str, known: Mapping[str, FlagSpec]) -> str:
    typed = word.partition("=")[0]
    name = re.sub("^--?", "", typed)
    if name.removeprefix("no") in known:
        return f"{typed}: only boolean flags can be written with --no; write --{name[2:]}=value"
    if name in _OF_JOBS:
        return f"{typed} is not a flag of a run, but of cnnbench {_OF_JOBS[name]}"
    flag, space, value = name.partition(" ")
    # In a flag file, each line is one word, even if it contains a space.
    if space and flag in known:
        return f"{typed} must be followed by = and the value: write --{flag}={value.strip()}"
    switches = (f"no{n}" for n, spec in known.items() if spec.kind.name == "boolean")
    close = nearest_word(name, [*known, *switches])
    of_runs = ACCEPTED.keys() <= known.keys()
    help_command = "cnnbench run --help" if of_runs else "--help"
    hint = f"did you mean --{close}?" if close else f"{help_command} lists all flags"
    return f"unknown flag {typed}; {hint}"
