"""Parsing of command lines into ``Params``."""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from absl import flags

from cnnbench.base.jobs.resolve import mpi_ranks
from cnnbench.base.reading import read_text
from cnnbench.base.text.messages import nearest
from cnnbench.errors import FlagError, UsageError
from cnnbench.flags.checks import check_each, check_fp16, validate
from cnnbench.flags.cluster import ADDRESSES, with_job_from_env
from cnnbench.flags.declare import FlagSpec
from cnnbench.flags.ineffective import unused_notices
from cnnbench.flags.params import FLAGS, Params
from cnnbench.flags.retired import OBSOLETE, REMOVED, RENAMED, obsolete_notices, renamed_notices

_FLAG_FILE = "flagfile"
_MOST_NESTED = 64

_OF_JOBS = {
    **dict.fromkeys(("workers", "ps", "controller"), "launch, ab, explain and tune"),
    "towers": "launch; --num_gpus sets those of a worker",
}

HOROVOD = "horovod"
"""The mode of tf_cnn_benchmarks that runs here without Horovod."""

_INSTEAD_OF_HOROVOD = (
    "--variable_update=horovod runs as collective_all_reduce, without Horovod (docs/cluster.md)"
)


@dataclass(frozen=True)
class ParsedArgs:
    """A parsed command line: validated parameters, names of the given flags, lines for stderr."""

    params: Params
    explicit_flags: tuple[str, ...]
    notices: tuple[str, ...]


def parse_args(argv: Sequence[str]) -> ParsedArgs:
    """Parses and validates the arguments of ``cnnbench run``; UsageError names the wrong one."""
    by_name = {spec.name: spec for spec in (*FLAGS, *OBSOLETE)}
    values = _flag_values(argv, by_name)
    given = _given(values, by_name, choices=False)  # validate checks the choices
    if {"precision", "use_fp16"} <= given.keys():  # Params makes them agree
        check_fp16(given["precision"], given["use_fp16"])
    renamed = [old for old in RENAMED if old in values and values[old].present]
    notices = obsolete_notices(given) + renamed_notices(renamed)
    if given.get("variable_update") == HOROVOD:
        given["variable_update"] = "collective_all_reduce"
        # Horovod has one process per device, started by mpirun.
        if mpi_ranks(os.environ) is not None and not {"cluster", *ADDRESSES} & given.keys():
            given["cluster"] = "mpi"
        notices += (_INSTEAD_OF_HOROVOD,)
    known = {spec.name for spec in FLAGS}
    params = Params(**{name: value for name, value in given.items() if name in known})
    if params.cluster != "flags":
        check_each(params)
        for name in ADDRESSES:
            if name in given:
                where = f"--cluster={params.cluster}, which finds it in the environment"
                raise FlagError(name, given[name], f"contradicts {where}")
        params = with_job_from_env(params, os.environ)
    validate(params)
    return ParsedArgs(
        params=params,
        explicit_flags=tuple(given),
        notices=(*notices, *unused_notices(params, given)),
    )


def parse_flags(argv: Sequence[str], specs: Iterable[FlagSpec]) -> dict[str, Any]:
    """Parses a command line of flags only to values by name, in the order of ``specs``.

    absl does the splitting (one or two dashes, ``--flag=value`` or ``--flag value``, ``--noflag``,
    ``--flagfile``); the last of repeated flags counts.
    """
    by_name = {spec.name: spec for spec in specs}
    return _given(_flag_values(argv, by_name), by_name, choices=False)


def _flag_values(argv: Sequence[str], by_name: dict[str, FlagSpec]) -> flags.FlagValues:
    values, arguments, leftovers = _split(argv, by_name, mixed=False)
    if leftovers:
        raise UsageError(_stray(arguments, leftovers, by_name))
    return values


def parse_command(
    argv: Sequence[str], specs: Iterable[FlagSpec]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Parses a command line of flags and arguments in any order; all after ``--`` are arguments."""
    by_name = {spec.name: spec for spec in specs}
    values, _, leftovers = _split(argv, by_name, mixed=True)
    if "" in leftovers[: leftovers.index("--") if "--" in leftovers else None]:
        raise UsageError("an argument is empty; is a variable of the shell not set?")
    return _given(values, by_name, choices=True), tuple(leftovers)


def _split(
    argv: Sequence[str], by_name: dict[str, FlagSpec], mixed: bool
) -> tuple[flags.FlagValues, Sequence[str], list[str]]:
    """Flag values, arguments with flag files expanded, and positional (`mixed`) arguments.

    Only flags that the arguments name have values, because absl needs 10 ms for all flags.
    """
    values = flags.FlagValues()
    values.set_gnu_getopt(mixed)
    arguments = list(_with_flag_files(argv, by_name, mixed))
    words = {word.lstrip("-").partition("=")[0] for word in arguments}
    words |= {word.removeprefix("no") for word in words}
    renamed = {old: RENAMED[old] for old in words & RENAMED.keys() if RENAMED[old] in by_name}
    for spec in (by_name[name] for name in by_name.keys() & {*words, *renamed.values()}):
        # absl hands the text through: one parser, FlagSpec's, serves both Python and this.
        switch = spec.kind == "boolean"
        entry: Any = flags.Flag(
            flags.ArgumentParser(), None, spec.name, None, spec.help, boolean=switch
        )
        flags.DEFINE_flag(entry, flag_values=values, module_name="cnnbench")
    for old, new in renamed.items():
        flags.DEFINE_alias(old, new, flag_values=values)
    try:
        _, *leftovers = values(["cnnbench", *arguments])
    except flags.UnrecognizedFlagError as error:
        raise UsageError(_unknown_flag(error.flagname, by_name)) from None
    except (flags.Error, ValueError) as error:
        text = str(error)
        if text.startswith("Missing value for flag "):
            name = text.removeprefix("Missing value for flag ").lstrip("-")
            text = f"--{name} needs a value: write --{name}=value"
        raise UsageError(text) from None
    return values, arguments, leftovers


def _with_flag_files(
    argv: Sequence[str], by_name: Mapping[str, FlagSpec], mixed: bool
) -> Iterator[str]:
    """The arguments with --flagfile replaced by the flags of the file, as in absl."""
    words = iter(argv)
    for word in words:
        name, equals, text = word.lstrip("-").partition("=")
        if word.startswith("-") and name == _FLAG_FILE:
            path = text if equals else next(words, None)
            if path is None:
                raise UsageError(f"--{_FLAG_FILE} needs a value: write --{_FLAG_FILE}=FILE")
            yield from _lines_of(path.strip(), ())
            continue
        yield word
        if word == "--" or not (mixed or word.startswith("-")):
            break
        known = by_name.get(RENAMED.get(name, name))
        spec = known if word.startswith("-") and not equals else None
        if spec is not None and spec.kind != "boolean":
            yield from itertools.islice(words, 1)  # its value, whatever that looks like
    yield from words


def _lines_of(path: str, around: tuple[str, ...]) -> Iterator[str]:
    """The flags in a file; `around` are the files that include it, the outermost first."""
    if not path:
        return
    file = os.path.expanduser(path)
    if len(around) >= _MOST_NESTED:
        raise FlagError(_FLAG_FILE, path, f"is nested deeper than {_MOST_NESTED} flag files")
    text = read_text(file, flag=_FLAG_FILE)
    real = os.path.realpath(file)
    if real in around:
        raise FlagError(_FLAG_FILE, path, "leads back to itself")
    for line in io.StringIO(text, newline=None):
        name, equals, inner = line.lstrip("-").partition("=")
        if line.startswith("-") and equals and name == _FLAG_FILE:
            yield from _lines_of(inner.strip(), (*around, real))
        elif line.strip() and not line.startswith(("#", "//")):
            yield line.strip()


def _given(values: flags.FlagValues, by_name: dict[str, FlagSpec], choices: bool) -> dict[str, Any]:
    given = {}
    for name, spec in by_name.items():
        if name in values and values[name].present:
            given[name] = spec.parse(values[name].value)
            if choices or not spec.choices:
                spec.check(given[name])
    return given


def _unknown_flag(name: str, known: dict[str, FlagSpec]) -> str:
    if name.removeprefix("no") in known:
        return f"--{name}: only a boolean has a --no form, write --{name[2:]}=value"
    if name in REMOVED:
        return f"--{name} was removed; {REMOVED[name]}"
    if name in _OF_JOBS:
        return f"--{name} is no flag of a run, but of cnnbench {_OF_JOBS[name]}"
    switches = (f"no{n}" for n, spec in known.items() if spec.kind == "boolean")
    close = nearest(name, [*known, *switches])
    hint = f"; did you mean --{close}?" if close else "; cnnbench run --help lists those of runs"
    return f"unknown flag --{name}{hint}"


def _stray(arguments: Sequence[str], leftovers: Sequence[str], known: dict[str, FlagSpec]) -> str:
    stray = leftovers[0]
    before = arguments[: len(arguments) - len(leftovers)]
    name = before[-1].lstrip("-") if before else ""
    spec = known.get(name)
    if spec is not None and spec.kind == "boolean":
        value = (
            stray.lower() if stray.lower() in ("true", "false") else "true or --" + name + "=false"
        )
        return f"stray argument {stray!r} after --{name}: write --{name}={value}"
    return f"stray argument {stray!r}: flags are written --flag=value"
