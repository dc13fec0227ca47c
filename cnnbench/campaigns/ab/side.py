"""A and B, which an experiment compares: their flags, checkouts and processes."""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from cnnbench.base.urls import is_url
from cnnbench.campaigns.launch import JobLayout, flags_to_arguments, run_command_words
from cnnbench.campaigns.processes import (
    COMMAND_LINE,
    BenchmarkCommand,
    ProcessRequest,
    ResolvedRun,
    ResultsFolder,
    blank_record,
    launcher_code,
    own_checkout,
)
from cnnbench.errors import FlagError, UsageError
from cnnbench.flags import (
    ACCEPTED,
    FLAG_FILE,
    FLAGS,
    RENAMED,
    RunPart,
    names_of_flags,
    parse_flags,
    specs_of,
    split_command_line,
)
from cnnbench.flags.groups.output import OutputParams
from cnnbench.machine.repository import (
    GitError,
    abbreviate_hash,
    git,
)
from cnnbench.records.run import RunRecord
from cnnbench.records.subject import Subject


@dataclass(frozen=True, kw_only=True)
class AbSide:
    """A or B of an experiment: the code, the interpreter and the flags of its runs.

    Attributes:
      flags: flags of ``cnnbench run``, including the flags that A and B share. For a job, every
        process gets these flags.
      own: the flags that only A or only B has.
      layout: the processes of a job; None for a run in one process.
      python: absolute path of an interpreter; None for the interpreter of this process.
      checkout: working directory. If it is a checkout of cnnbench, its code runs.
      revision: text with which the user named the checkout.
      commit: hash of the commit that is checked out into a temporary worktree; None for a folder.
      variables: environment variables that only A or only B has.
      resolved: the flags as resolved before the first process. Records of processes that leave no
        record contain them.
      subject: the measured code; None if unknown.
    """

    flags: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    layout: JobLayout | None = None
    python: str | None = None
    checkout: Path | None = None
    revision: str | None = None
    commit: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    resolved: ResolvedRun = field(default_factory=ResolvedRun)
    subject: Subject | None = None

    @cached_property
    def given_flags(self) -> dict[str, str]:
        """The flags that were given for A or B, as text by flag name. Flags in flag files are
        included. The values of a repeated flag are separated by commas.

        The flags may belong to another version of cnnbench.
        """
        texts: dict[str, list[str]] = {}
        rest: list[str] = []
        with contextlib.ExitStack() as stack:
            if self.checkout is not None:
                stack.callback(os.chdir, os.getcwd())
                os.chdir(self.checkout)
            with contextlib.suppress(UsageError):  # Wrong flags are reported when they are parsed.
                texts, rest = split_command_line(self.flags, ACCEPTED)
        flags = {
            name: ",".join(texts_of_flag) if ACCEPTED[name].repeated else texts_of_flag[-1]
            for name, texts_of_flag in texts.items()
            if name not in RENAMED
        }
        for word, after in itertools.zip_longest(rest, rest[1:], fillvalue=""):
            name, equals, value = word.lstrip("-").partition("=")
            if name and word.startswith("-"):  # This version of cnnbench does not know the flag.
                flags[name] = value if equals or after.startswith("-") else after
        return flags

    @property
    def is_this_cnnbench(self) -> bool:
        """Whether the processes of A or B run this cnnbench, so that this process can check their
        flags.
        """
        return self.python is None and not self._contains_cnnbench()

    def with_added_flags(self, flags: Mapping[str, object]) -> AbSide:
        """Returns a copy with additional flags, which are given as values by name."""
        return replace(self, flags=(*self.flags, *flags_to_arguments(flags)))

    def command(self, record: Path) -> tuple[str, ...]:
        """Program and arguments of a process of A or B, which writes its record to the file
        `record`.
        """
        python = self.python or sys.executable
        words = run_command_words(self.layout, self.with_added_flags({"result_json": record}).flags)
        return (python, "-c", launcher_code(COMMAND_LINE), self.import_folder, *words)

    @property
    def extra_environment(self) -> Mapping[str, str]:
        """Environment variables that the processes of A or B get in addition to the variables of
        this process.
        """
        # Without PYTHONSAFEPATH, old versions of `launch` import cnnbench from the working folder.
        safe_path = (
            {"PYTHONSAFEPATH": "1"} if self.layout is not None and not self.import_folder else {}
        )
        return {**safe_path, **self.variables}

    def description(self) -> str:
        """Describes, in one line, the settings that only A or only B has.

        Environment variables are named without their values, which may be secrets.
        """
        parts = [shlex.join(self.own)] if self.own else []
        parts += [f"python {self.python}"] if self.python else []
        code = abbreviate_hash(self.revision or str(self.checkout))
        parts += [f"checkout {code}"] if self.checkout else []
        parts += [f"variable {name}" for name in self.variables]
        return ", ".join(parts) or "no flags of its own"

    @property
    def import_folder(self) -> str:
        """Folder from which processes of A or B import cnnbench; "" for the installed package."""
        if self._contains_cnnbench():
            return str(self.checkout)
        return "" if self.python is not None else own_checkout()

    @property
    def code_name(self) -> str:
        """Name of the code of A or B: its folder, or the commit of a temporary worktree. "" if A or
        B has no checkout.
        """
        if self.commit is None:
            return str(self.checkout or "")
        return f"commit {abbreviate_hash(self.commit)}"

    @property
    def config(self) -> Mapping[str, object]:
        """The resolved parameters of a run or, if they are unknown, the given flags."""
        return self.resolved.config or self.given_flags

    def _contains_cnnbench(self) -> bool:
        return self.checkout is not None and (self.checkout / "cnnbench" / "__init__.py").is_file()


def make_process_request(
    folder: ResultsFolder, name: str, side: AbSide, **more: Any
) -> ProcessRequest:
    """Creates the request for a process of A or B, with a log in the results directory.

    `more` contains other fields of `ProcessRequest`.
    """
    log = folder.log_path(name)
    command = benchmark_command(side, folder.unfinished_path(folder.folder / f"{name}.json"), log)
    return ProcessRequest(name=name, command=command, **{"label": name, **more})


def benchmark_command(side: AbSide, record: Path, log: Path) -> BenchmarkCommand:
    """Creates the command of a process of A or B, which writes a record and a log."""
    command = ("cnnbench", *run_command_words(side.layout, side.flags))
    return BenchmarkCommand(
        words=side.command(record.absolute()),
        log=log,
        environment=side.extra_environment,
        folder=side.checkout,
        record=record,
        blank=blank_record(RunRecord.kind, command, side.resolved),
    )


RESERVED = names_of_flags(FLAGS, RunPart.PER_PROCESS)
"""Flags of runs that campaigns refuse. With them, a process would resume or overwrite what an
earlier process has written.
"""

WRITTEN = {spec.name for spec in specs_of(OutputParams) if spec.path}.difference(RESERVED)
"""Flags with paths of output files and folders of a run, except the flags in `RESERVED`."""


def refuse_flags(side: AbSide, names: Sequence[str], reason: str) -> None:
    """Raises FlagError, with `reason`, if A or B (`side`) has one of the flags in `names`."""
    for name, value in side.given_flags.items():
        if name in names:
            raise FlagError(name, value, reason)


def check_flags_of_commit(side: AbSide, commit: str, folder: str | Path = ".") -> None:
    """Raises UsageError for flags that are invalid for all commits, before `commit` is checked out.

    Flags are not checked if the commit contains cnnbench, which may have other flags, or if a flag
    file is given, which may be in the commit. Relative paths of outputs are refused, because the
    files would be removed with the worktree.
    """
    for name, value in replace(side, checkout=None).given_flags.items():
        if name in WRITTEN and value and not (os.path.isabs(value) or is_url(value)):
            reason = "is in a worktree that is removed; give an absolute path"
            raise FlagError(name, value, reason)
    if side.python is not None or any(FLAG_FILE in word for word in side.flags):
        return
    try:
        git("cat-file", "-e", f"{commit}:cnnbench/__init__.py", folder=folder)
    except GitError:
        parse_flags(side.flags, ACCEPTED.values())
