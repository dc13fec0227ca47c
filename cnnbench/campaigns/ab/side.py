"""One side of an experiment: its code, its flags, and its processes."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from cnnbench.campaigns.launch.tasks import JobLayout, command_words, run_words
from cnnbench.campaigns.processes.campaign import Request
from cnnbench.campaigns.processes.child import COMMAND_LINE, launcher, own_checkout
from cnnbench.campaigns.processes.commands import Resolved
from cnnbench.campaigns.processes.outcome import Measuring, blank_record
from cnnbench.campaigns.processes.question import AskedPlan, identity_of
from cnnbench.campaigns.processes.results_dir import ResultsFolder
from cnnbench.errors import UsageError
from cnnbench.flags.params import ACCEPTED
from cnnbench.flags.parse import split
from cnnbench.flags.retired import RENAMED
from cnnbench.machine import repository
from cnnbench.machine.software import may_be_shown
from cnnbench.records.run import RunRecord
from cnnbench.records.subject import Subject

_HAS_FILE = (
    "import os, cnnbench; home = os.path.dirname(cnnbench.__file__); "
    "sys.exit(not any(os.path.isfile(os.path.join(home, name)) for name in sys.argv[1:]))"
)
_ANSWER_SECONDS = 60.0
_VERSIONS = (
    "import json, platform; from cnnbench.machine import host, software; "
    "print(json.dumps({'python': platform.python_version(), **software.packages(host.Host())}))"
)


@dataclass(frozen=True, kw_only=True)
class Side:
    """Code, interpreter and flags of a side.

    Attributes:
      flags: flags of ``cnnbench run``, including common ones; for a job, those of every process.
      own: the flags of this side only.
      layout: the processes of a job; None for a run in one process.
      python: absolute path of an interpreter; the current one if None.
      checkout: working directory; a checkout of cnnbench is also the code that runs.
      revision: name of the checkout given by the user.
      resolved: its flags as resolved before the first process, also for records of processes that
        leave none.
      subject: what it measures; None if unknown.
      cores: processors that its processes may use; None: those of this process.
    """

    flags: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    layout: JobLayout | None = None
    python: str | None = None
    checkout: Path | None = None
    revision: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    resolved: Resolved = field(default_factory=Resolved)
    subject: Subject | None = None
    cores: Collection[int] | None = None

    @cached_property
    def given(self) -> dict[str, str]:
        """Values of the given flags by name, in flag files too, for any version of cnnbench."""
        texts: dict[str, list[str]] = {}
        rest: list[str] = []
        with contextlib.ExitStack() as stack:
            if self.checkout is not None:
                stack.callback(os.chdir, os.getcwd())
                os.chdir(self.checkout)
            with contextlib.suppress(UsageError):  # the parser will raise it
                texts, rest = split(self.flags, ACCEPTED)
        found = {name: given[-1] for name, given in texts.items() if name not in RENAMED}
        for word, after in itertools.zip_longest(rest, rest[1:], fillvalue=""):
            name, equals, value = word.lstrip("-").partition("=")
            if name and word.startswith("-"):  # a flag of another version
                found[name] = value if equals or after.startswith("-") else after
        return found

    @property
    def is_this_cnnbench(self) -> bool:
        """Whether the side runs the code of this process, so that flags can be checked."""
        return self.python is None and not self._holds_cnnbench()

    def including(self, flags: Mapping[str, object]) -> Side:
        """The side with more flags, by name."""
        return replace(self, flags=(*self.flags, *command_words(flags)))

    def command(self, record: Path) -> tuple[str, ...]:
        """Program and arguments of a process that writes its record to a file."""
        python = self.python or sys.executable
        words = run_words(self.layout, self.including({"result_json": record}).flags)
        return (python, "-c", launcher(COMMAND_LINE), self.root, *words)

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables that its processes get in addition to those of this process."""
        # Earlier versions of launch start tasks with -m, which would look for an interpreter's
        # cnnbench in the working directory first.
        apart = {"PYTHONSAFEPATH": "1"} if self.layout is not None and not self.root else {}
        return {**apart, **self.variables}

    def description(self) -> str:
        """Settings of this side only, in one line, without values of variables."""
        parts = [shlex.join(self.own)] if self.own else []
        parts += [f"python {self.python}"] if self.python else []
        parts += [f"checkout {self.revision or self.checkout}"] if self.checkout else []
        parts += [f"variable {name}" for name in self.variables]
        return ", ".join(parts) or "nothing of its own"

    @property
    def root(self) -> str:
        """Folder from which cnnbench is imported; "" for the installed one."""
        if self._holds_cnnbench():
            return str(self.checkout)
        return "" if self.python is not None else own_checkout()

    def code(self) -> Subject:
        """The code that it measures, as it is now."""
        return repository.of_work(self._config, self.checkout, self.resolved.parts)

    @property
    def _config(self) -> Mapping[str, object]:
        return self.resolved.config or self.given

    def plan(self) -> AskedPlan:
        """Its plan, for a question, identified by flags, interpreter and variables."""
        shown = {name: text for name, text in self.variables.items() if may_be_shown(name)}
        found = identity_of(
            self.resolved.identity or self.given,
            flags=self.flags,
            python=self.python,
            job=() if self.layout is None else self.layout.flags,
            variables=sorted(self.variables),
            **shown,
            **({} if self.python is None else _versions(self)),
        )
        place = f"{self.checkout}{os.sep}"  # may be a temporary one
        found = {
            name: value.removeprefix(place) if isinstance(value, str) else value
            for name, value in found.items()
        }
        return AskedPlan(found, self._config, self.checkout, self.resolved.parts)

    def _holds_cnnbench(self) -> bool:
        return self.checkout is not None and (self.checkout / "cnnbench" / "__init__.py").is_file()


def ask(
    side: Side, code: str, *arguments: str, ours: bool, seconds: float
) -> subprocess.CompletedProcess[bytes]:
    """Runs code in a side's folder with its variables, and waits for its end.

    The code sees the arguments from sys.argv[1] on; with `ours` it imports this cnnbench. OSError
    if it cannot be started, subprocess.TimeoutExpired if it did not end.
    """
    python, root = (None, own_checkout()) if ours else (side.python, side.root)
    return subprocess.run(
        [python or sys.executable, "-c", launcher(code), root, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**repository.environment(), **side.variables},
        cwd=side.checkout,
        timeout=seconds,
        check=False,
    )


def has_module(side: Side, *paths: str) -> bool:
    """Whether the cnnbench of a side has a module; False also if it cannot be asked.

    The paths are its alternative locations below the package. Files are checked, because an
    editable installation provides its own modules for those that a checkout lacks.
    """
    try:
        return ask(side, _HAS_FILE, *paths, ours=False, seconds=_ANSWER_SECONDS).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _versions(side: Side) -> dict[str, object]:
    """Versions of what the interpreter of a side imports; none if it cannot be asked."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired, ValueError):
        answer = ask(side, _VERSIONS, ours=False, seconds=_ANSWER_SECONDS).stdout
        return dict(json.loads(answer))
    return {}


def request(folder: ResultsFolder, name: str, side: Side, **more: Any) -> Request:
    """A process of a side, with its log in a folder; `more` are other fields of `Request`."""
    log = folder.log(name)
    command = measuring(side, folder.unfinished(folder.folder / f"{name}.json"), log)
    return Request(name=name, command=command, **{"label": name, **more})


def measuring(side: Side, record: Path, log: Path) -> Measuring:
    """Description of a process of a side, which writes a record and a log."""
    command = ("cnnbench", *run_words(side.layout, side.flags))
    return Measuring(
        words=side.command(record.absolute()),
        log=log,
        environment=side.environment,
        folder=side.checkout,
        cores=side.cores,
        record=record,
        blank=blank_record(RunRecord.kind, command, side.resolved),
    )
