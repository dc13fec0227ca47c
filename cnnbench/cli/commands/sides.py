"""Command lines of campaigns, and the flags and checks of commands that compare A and B."""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from cnnbench.base.terminal import ChildProcessReporter
from cnnbench.campaigns.ab.experiment import SIDES
from cnnbench.campaigns.ab.shared_code import refuse_shared_code
from cnnbench.campaigns.ab.side import AbSide, check_flags_of_commit, opened_sides
from cnnbench.campaigns.ab.worktree import resolve_commit
from cnnbench.campaigns.launch import JobLayout, flags_to_arguments
from cnnbench.campaigns.processes import (
    Campaign,
    CampaignIdentity,
    CampaignKind,
    ConfigurationIdentity,
    ResultsFolder,
    Settings,
)
from cnnbench.cli.commands import write_or_print_output
from cnnbench.errors import FlagError, UsageError
from cnnbench.flags import (
    FLAGS,
    RENAMED,
    FlagSpec,
    flag,
    parse_command,
    split_at_double_dash,
    split_command_line,
)
from cnnbench.machine import facts
from cnnbench.machine.facts import may_record_variable

# Command lines of commands that measure A and B, each with its own flags.

MOST_PAIRS = 1000
"""Maximum number of pairs in an experiment."""

VARIABLES = ("a_env", "b_env")
"""Flags whose values may be secrets."""

_CHECKOUT = (
    "Run the processes of side A in this folder, or in a temporary worktree of this git "
    "revision. If the folder is a checkout of cnnbench, the code in the folder runs."
)


def results_folder(folder: str | None, command: str, resume: bool = False) -> str:
    """The path in --results. By default, the name consists of the command and the local time.

    Raises FlagError if --resume is given without --results.
    """
    if resume and folder is None:
        raise FlagError(
            "resume", "true", "needs --results=DIR: the folder of the interrupted campaign"
        )
    return folder or f"{command}-{datetime.now():%Y%m%d-%H%M%S}"


@dataclass(frozen=True, kw_only=True)
class CampaignFlags:
    """Flags of commands that run many processes and store the records in a results folder."""

    timeout: float = flag(1800.0, "Time limit of each process, in seconds.", above=0)
    seed: int | None = flag(
        None,
        "Seed of the random order. If not given, a random seed; with --resume, the seed in "
        "--results.",
        minimum=0,
    )
    results: str | None = flag(
        None,
        "Folder for records, logs and the journal. If not given, COMMAND-DATE-TIME.",
        path="folder",
    )
    resume: bool = flag(
        False,
        "Continue the campaign in --results: measured processes are kept, and failed processes "
        "run again. Limits such as --pairs, --rounds or --minutes may be larger than before.",
    )

    def resolve_seed(self, kind: CampaignKind, folder: str, suite: str | None = None) -> int:
        """The value of --seed. By default, a random seed, or the seed in `folder` with --resume."""
        seed = self.seed
        if seed is None and self.resume:
            seed = kind.stored_seed(folder, suite)
        return random.SystemRandom().randrange(2**31) if seed is None else seed

    @contextlib.contextmanager
    def open_campaign(
        self,
        kind: CampaignKind,
        plans: Mapping[str, ConfigurationIdentity],
        policy: Mapping[str, Any] | None = None,
        reporter: ChildProcessReporter | None = None,
        machine: Mapping[str, Any] | None = None,
        *,
        settings: Settings | None = None,
        cool_down: float = 0.0,
    ) -> Iterator[tuple[ResultsFolder, Campaign, int]]:
        """Context manager: opens the folder in --results. Yields the folder, the campaign that runs
        its processes, and the seed of the random order.

        With --resume, everything must be as before: see `CampaignIdentity` for `plans` and
        `policy`, to which the seed is added. `machine` contains the facts of this machine if they
        are known already. `settings` are stored, too, if the command has settings of its own.
        """
        name = results_folder(self.results, kind.command, self.resume)
        seed = self.resolve_seed(kind, name, (policy or {}).get("suite"))
        identity = CampaignIdentity(
            plans=plans,
            facts=facts.collect() if machine is None else machine,
            policy={**(policy or {}), "seed": seed},
        )
        stored = settings and replace(settings, identity=identity.values())
        with ResultsFolder(kind, name, stored or identity, resume=self.resume) as folder:
            reporter = reporter or ChildProcessReporter(sys.stderr)
            yield folder, Campaign(reporter, cool_down=cool_down, identity=identity), seed


@dataclass(frozen=True, kw_only=True)
class SideFlags:
    """Flags that define A and B of a comparison, each with its flags and code."""

    a: str = flag("", "Flags for side A only, as one shell word.")
    b: str = flag("", "Flags for side B only, as one shell word.")
    a_python: str | None = flag(
        None, "Interpreter of side A that has cnnbench installed.", path="file"
    )
    b_python: str | None = flag(None, "Interpreter of side B, like --a_python.", path="file")
    a_checkout: str | None = flag(None, _CHECKOUT, path="folder")
    b_checkout: str | None = flag(None, "Code of side B, like --a_checkout.", path="folder")
    a_env: tuple[str, ...] | None = flag(
        None,
        "Environment variable of side A, NAME=VALUE; may be repeated.",
        repeated=True,
        separator="",
    )
    b_env: tuple[str, ...] | None = flag(
        None, "Environment variable of side B, like --a_env.", repeated=True, separator=""
    )

    @property
    def environment_variables(self) -> dict[str, dict[str, str]]:
        """The environment variables in --a_env and --b_env: values by "a" or "b", and by name."""
        by_side: dict[str, dict[str, str]] = {"a": {}, "b": {}}
        for name in VARIABLES:
            for text in getattr(self, name) or ():
                variable, equals, value = text.partition("=")
                if not equals or not variable:
                    raise FlagError(name, "...", "must be NAME=VALUE")
                by_side[name[0]][variable] = value
        return by_side


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
    return values, arguments, tuple(common)


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


def interpreter_path(flag: str, text: str) -> str:
    """The absolute path of the Python interpreter in the value `text` of a flag.

    Links are not resolved, because the link may be in a virtual environment.
    """
    path = shutil.which(text)
    if path is None:
        raise FlagError(flag, text, "is not a program that can be started")
    return os.path.abspath(path)


@contextlib.contextmanager
def open_sides(
    options: SideFlags,
    layout: JobLayout | None,
    common: Sequence[str],
    reporter: ChildProcessReporter,
    names: Sequence[str] = SIDES,
    advice: str = "",
) -> Iterator[dict[str, AbSide]]:
    """Context manager: creates A and B from their flags, and opens them; see `opened_sides`.

    Raises UsageError also if A and B load the same files although these should differ.

    Args:
      common: flags of the runs of both.
      names: beginnings of the names of the flags that define A and B: two different ones, or twice
        the same for an A/A measurement.
    """
    values = options.environment_variables
    made = [
        _side_of_flags(options, common, name, layout=layout, variables=values[name])
        for name in names
    ]
    with opened_sides(made, names, reporter, advice) as both:
        refuse_shared_code(both)
        yield both


def _side_of_flags(options: SideFlags, common: Sequence[str], name: str, **more: Any) -> AbSide:
    """Creates A or B from the flags whose names begin with `name`, without a worktree. `more` are
    fields of `AbSide` that do not follow from these flags.
    """
    text, python, checkout = (
        getattr(options, flag) for flag in (name, f"{name}_python", f"{name}_checkout")
    )
    try:
        own = tuple(shlex.split(text))
    except ValueError as error:
        raise FlagError(name, text, f"is not a list of flags: {error}") from None
    if python is not None:
        python = interpreter_path(f"{name}_python", python)
    commit = None if checkout is None else resolve_commit(f"{name}_checkout", checkout)
    side = AbSide(
        flags=(*common, *own),
        own=own,
        python=python,
        checkout=None if checkout is None else Path(checkout).resolve(),
        revision=checkout,
        commit=commit,
        **more,
    )
    if commit is not None:
        check_flags_of_commit(side, commit)
    return side
