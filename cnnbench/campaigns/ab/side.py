"""A side of an experiment: its flags and its checkout.

A child process with the working directory and variables of the side resolves them: relative paths
and imports of plug-ins are the side's, and no plug-in is loaded here.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from cnnbench.base.files import is_url
from cnnbench.base.interrupts import delaying_interrupts
from cnnbench.base.stats import median
from cnnbench.base.terminal import Reporter
from cnnbench.base.text import format_duration
from cnnbench.campaigns.launch import JobLayout, flags_to_words, resolve_run, run_command_words
from cnnbench.campaigns.processes import guard
from cnnbench.campaigns.processes.campaign import BenchmarkCommand, ProcessRequest, blank_record
from cnnbench.campaigns.processes.child import (
    COMMAND_LINE,
    NO_TURNS_OF_JOBS,
    RunSummary,
    launcher_code,
    own_checkout,
)
from cnnbench.campaigns.processes.results_dir import PlanIdentity, ResultsFolder, identity_values
from cnnbench.errors import BenchmarkError, DataError, FlagError, UsageError
from cnnbench.flags import parse_args, parse_flags
from cnnbench.flags.declare import RunPart, names_of_flags, specs_of
from cnnbench.flags.groups.output import OutputParams
from cnnbench.flags.params import ACCEPTED, FLAGS, RENAMED
from cnnbench.flags.parse import FLAG_FILE, split_command_line
from cnnbench.machine import repository
from cnnbench.machine.facts import may_record_variable
from cnnbench.machine.repository import (
    GitError,
    command,
    commit_of,
    environment,
    git,
    git_error_reason,
)
from cnnbench.records.codec import decode, encode
from cnnbench.records.run import RunRecord, Subject

# Number of timed steps of a process.

LENGTHS = frozenset(names_of_flags(FLAGS, RunPart.LENGTH))
"""Flags that decide how many timed steps a run has."""


class StepCountEstimate:
    """Finds how many timed steps a process needs to run for a given time.

    Attributes:
      step_seconds: median seconds of a step in the slowest of the measured runs.
      wanted: steps that take `seconds`.
    """

    def __init__(
        self, seconds: float, measured: Sequence[RunRecord], fewest: int, most: int
    ) -> None:
        self.step_seconds = max(median(record.step_seconds) for record in measured)
        self.wanted = math.ceil(seconds / self.step_seconds)
        self._fewest, self._most = fewest, most

    def timed(self, factor: float = 1.0) -> int:
        """The number of steps that was requested, times `factor`, within the limits."""
        return min(max(self._fewest, math.ceil(factor * self.wanted)), self._most)

    def __str__(self) -> str:
        time = format_duration(self.timed() * self.step_seconds)
        return (
            f"{self.timed()} timed steps in each process, about {time}; --num_batches sets another "
            "number"
        )


# Temporary worktrees of measured revisions.


def resolve_commit(flag: str, text: str) -> str | None:
    """The commit that the value of a flag names; None if the value is a folder; otherwise
    FlagError.
    """
    if os.path.isdir(text):
        return None
    try:
        return commit_of(text)
    except GitError as error:
        where = "is neither a folder nor a revision of the repository you are in"
        raise FlagError(flag, text, f"{where}: {error}") from None


@contextlib.contextmanager
def worktree(commit: str, repository: str | Path = ".") -> Iterator[Path]:
    """A temporary worktree of a commit (a hash); removed even if this process is killed."""
    process = subprocess.Popen(
        [sys.executable, "-IS", guard.__file__, "worktree", commit, *command(repository)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment(),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        try:
            answer = json.loads(process.stdout.readline())
        except ValueError:
            raise BenchmarkError(f"git worktree add {commit}: was not finished") from None
        if answer["error"]:
            raise BenchmarkError(f"git worktree add {commit}: {git_error_reason(answer['error'])}")
        yield Path(answer["folder"])
    finally:
        # The context manager of the process is not used: after Ctrl-C, it would not wait for the
        # process.
        with delaying_interrupts():
            process.stdin.close()
            process.stdout.close()
            process.wait()


# One side of an experiment: its code, its flags, and its processes.

_HAS_FILE = (
    "import os, cnnbench; home = os.path.dirname(cnnbench.__file__); "
    "sys.exit(not any(os.path.isfile(os.path.join(home, name)) for name in sys.argv[1:]))"
)
_ANSWER_SECONDS = 60.0
_VERSIONS = """\
import json, platform
try:
    from cnnbench.machine.cpu import Host
    from cnnbench.machine.facts import packages
except ImportError:  # a version from before these modules were merged
    from cnnbench.machine.host import Host
    from cnnbench.machine.software import packages
print(json.dumps({"python": platform.python_version(), **packages(Host())}))
"""


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
    resolved: RunSummary = field(default_factory=RunSummary)
    subject: Subject | None = None
    cores: Collection[int] | None = None

    @cached_property
    def given_flags(self) -> dict[str, str]:
        """Values of the given flags by name, including flags in flag files, for any version of
        cnnbench.
        """
        texts: dict[str, list[str]] = {}
        rest: list[str] = []
        with contextlib.ExitStack() as stack:
            if self.checkout is not None:
                stack.callback(os.chdir, os.getcwd())
                os.chdir(self.checkout)
            with contextlib.suppress(UsageError):  # The parser raises this error later.
                texts, rest = split_command_line(self.flags, ACCEPTED)
        flags = {
            name: texts_of_flag[-1] for name, texts_of_flag in texts.items() if name not in RENAMED
        }
        for word, after in itertools.zip_longest(rest, rest[1:], fillvalue=""):
            name, equals, value = word.lstrip("-").partition("=")
            if name and word.startswith("-"):  # The flag belongs to another version.
                flags[name] = value if equals or after.startswith("-") else after
        return flags

    @property
    def is_this_cnnbench(self) -> bool:
        """Whether the side runs the code of this process, so that flags can be checked."""
        return self.python is None and not self._contains_cnnbench()

    def including(self, flags: Mapping[str, object]) -> Side:
        """The side with additional flags, given by name."""
        return replace(self, flags=(*self.flags, *flags_to_words(flags)))

    def command(self, record: Path) -> tuple[str, ...]:
        """Program and arguments of a process that writes its record to a file."""
        python = self.python or sys.executable
        words = run_command_words(self.layout, self.including({"result_json": record}).flags)
        return (python, "-c", launcher_code(COMMAND_LINE), self.root, *words)

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables of the side's processes, in addition to the variables of this
        process.
        """
        # Earlier versions of launch start tasks with -m. Python would then look for cnnbench in the
        # working directory first.
        safe_path = {"PYTHONSAFEPATH": "1"} if self.layout is not None and not self.root else {}
        return {**safe_path, **self.variables}

    def description(self) -> str:
        """The settings that only this side has, in one line, without the values of environment
        variables.
        """
        parts = [shlex.join(self.own)] if self.own else []
        parts += [f"python {self.python}"] if self.python else []
        parts += [f"checkout {self.revision or self.checkout}"] if self.checkout else []
        parts += [f"variable {name}" for name in self.variables]
        return ", ".join(parts) or "no flags of its own"

    @property
    def root(self) -> str:
        """Folder from which cnnbench is imported; "" for the installed one."""
        if self._contains_cnnbench():
            return str(self.checkout)
        return "" if self.python is not None else own_checkout()

    def code(self) -> Subject:
        """The current state of the code that the side measures."""
        return repository.measured_code(self._config, self.checkout, self.resolved.parts)

    @property
    def _config(self) -> Mapping[str, object]:
        return self.resolved.config or self.given_flags

    def plan(self) -> PlanIdentity:
        """The side's part of the campaign's identity: flags, interpreter and variables."""
        shown = {name: text for name, text in self.variables.items() if may_record_variable(name)}
        identity = identity_values(
            self.resolved.identity or self.given_flags,
            flags=self.flags,
            python=self.python,
            job=() if self.layout is None else self.layout.flags,
            variables=sorted(self.variables),
            **shown,
            **({} if self.python is None else _library_versions(self)),
        )
        place = f"{self.checkout}{os.sep}"  # The checkout may be in a temporary folder.
        identity = {
            name: value.removeprefix(place) if isinstance(value, str) else value
            for name, value in identity.items()
        }
        return PlanIdentity(identity, self._config, self.checkout, self.resolved.parts)

    def _contains_cnnbench(self) -> bool:
        return self.checkout is not None and (self.checkout / "cnnbench" / "__init__.py").is_file()


def run_code(
    side: Side, code: str, *arguments: str, ours: bool, seconds: float
) -> subprocess.CompletedProcess[bytes]:
    """Runs code in a side's folder with its variables, and waits for its end.

    The code sees the arguments from sys.argv[1] on; with `ours` it imports this cnnbench. OSError
    if it cannot be started, subprocess.TimeoutExpired if it did not end.
    """
    python, root = (None, own_checkout()) if ours else (side.python, side.root)
    return subprocess.run(
        [python or sys.executable, "-c", launcher_code(code), root, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**repository.environment(), **side.variables},
        cwd=side.checkout,
        timeout=seconds,
        check=False,
    )


def has_module(side: Side, *paths: str) -> bool:
    """Whether the version of cnnbench of a side has a module. False if this is unknown.

    The paths are its alternative locations below the package. Files are checked, because an
    editable installation provides its own modules for those that a checkout lacks.
    """
    try:
        return (
            run_code(side, _HAS_FILE, *paths, ours=False, seconds=_ANSWER_SECONDS).returncode == 0
        )
    except (OSError, subprocess.TimeoutExpired):
        return False


def _library_versions(side: Side) -> dict[str, object]:
    """Versions of the packages that the interpreter of a side imports; empty if they are
    unknown.
    """
    with contextlib.suppress(OSError, subprocess.TimeoutExpired, ValueError):
        answer = run_code(side, _VERSIONS, ours=False, seconds=_ANSWER_SECONDS).stdout
        return dict(json.loads(answer))
    return {}


def make_process_request(
    folder: ResultsFolder, name: str, side: Side, **more: Any
) -> ProcessRequest:
    """A process of a side, with its log in a folder.

    `more` are other fields of `ProcessRequest`.
    """
    log = folder.log(name)
    command = benchmark_command(side, folder.unfinished_path(folder.folder / f"{name}.json"), log)
    return ProcessRequest(name=name, command=command, **{"label": name, **more})


def benchmark_command(side: Side, record: Path, log: Path) -> BenchmarkCommand:
    """Description of a process of a side, which writes a record and a log."""
    command = ("cnnbench", *run_command_words(side.layout, side.flags))
    return BenchmarkCommand(
        words=side.command(record.absolute()),
        log=log,
        environment=side.environment,
        folder=side.checkout,
        cores=side.cores,
        record=record,
        blank=blank_record(RunRecord.kind, command, side.resolved),
    )


# Checks, resolves and compares the flags of sides before the first process.

_ASK = "from cnnbench.campaigns.ab.side import print_answer; print_answer(*sys.argv[1:])"
# Time limit, because the import of a plug-in may never return.
_SECONDS = 120.0

RESERVED = names_of_flags(FLAGS, RunPart.PER_PROCESS)
"""Flags of runs to refuse: a second process would resume or overwrite what the first left."""

# Additional files and folders that a run writes.
_WRITTEN = {spec.name for spec in specs_of(OutputParams) if spec.path}.difference(RESERVED)

TURN_SECONDS = 0.3
"""Length of a turn; docs/evidence.md has its effect."""

# A version of cnnbench with one of these files supports turns. Earlier versions have the second
# file.
_WAITS = ("run/runtime/turns.py", "runtime/turns.py")

# Another interpreter has other packages.
_OF_PYTHON = ("tensorflow",)


def refuse_flags(side: Side, names: Sequence[str], reason: str) -> None:
    """Raises FlagError for given flags by name."""
    for name, value in side.given_flags.items():
        if name in names:
            raise FlagError(name, value, reason)


def resolve_flags(side: Side) -> RunSummary:
    """Resolves the flags of a side that this version of cnnbench knows.

    UsageError if one is wrong.
    """
    try:
        layout = json.dumps(None if side.layout is None else side.layout._asdict())
        done = run_code(side, _ASK, layout, *side.flags, ours=True, seconds=_SECONDS)
        answer = json.loads(done.stdout.splitlines()[-1])
        error, resolved = answer["error"], decode(RunSummary, answer["resolved"])
    except (OSError, subprocess.TimeoutExpired, ValueError, LookupError, TypeError):
        # The plug-in ended its process, or printed text after the answer. The run will report it.
        return RunSummary()
    if not side.is_this_cnnbench:
        return replace(resolved, notices=())
    if error is not None:
        raise UsageError(str(error))
    return resolved


def check_flags_of_commit(side: Side, commit: str, folder: str | Path = ".") -> None:
    """Refuses flags that are wrong with any commit, before the worktree of a commit is created.

    Another cnnbench, such as that of the commit, may know others; a flag file may be in the commit.
    What a run writes to a relative path would be removed with the worktree.
    """
    for name, value in replace(side, checkout=None).given_flags.items():
        paths = value.split(",") if name in _WRITTEN else ()
        if any(path and not (os.path.isabs(path) or is_url(path)) for path in paths):
            reason = "is in a worktree that is removed; give an absolute path"
            raise FlagError(name, value, reason)
    if side.python is not None or any(FLAG_FILE in word for word in side.flags):
        return
    try:
        git("cat-file", "-e", f"{commit}:cnnbench/__init__.py", folder=folder)
    except GitError:
        parse_flags(side.flags, ACCEPTED.values())


def print_answer(job: str, *flags: str) -> None:
    """The child process of `resolve_flags`: prints resolved flags.

    `job` is a JSON `JobLayout` or null.
    """
    error, resolved = None, RunSummary()
    try:
        fields = json.loads(job)
        layout = None if fields is None else JobLayout(**fields)
        resolved = resolve_run(parse_args(flags), layout)
    except (UsageError, DataError) as refusal:
        error = str(refusal)
    print("\n" + json.dumps({"error": error, "resolved": encode(resolved)}))


def side_differences(a: Side, b: Side) -> tuple[str, ...]:
    """The facts, and the groups of facts in --allow_different, in which the sides may differ."""
    flags, new_flags = a.given_flags, b.given_flags
    names = [name for name in {**flags, **new_flags} if flags.get(name) != new_flags.get(name)]
    variables = {*a.variables.items()} ^ {*b.variables.items()}
    names += [f"env_{name}" for name in sorted({name for name, _ in variables})]
    if a.python != b.python:
        names += _OF_PYTHON
    return tuple(names)


def why_no_turns(sides: Mapping[str, Side]) -> str | None:
    """The reason why two sides cannot take turns; None if they can."""
    for name, side in sides.items():
        obstacle = NO_TURNS_OF_JOBS if side.layout else side.resolved.no_turns
        if obstacle is None and not side.is_this_cnnbench and not has_module(side, *_WAITS):
            obstacle = "its cnnbench is of a version that cannot"
        if obstacle is not None:
            return f"side {name.upper()}: {obstacle}"
    return None


def resolve_turn_seconds(pairing: str, sides: Mapping[str, Side], reporter: Reporter) -> float:
    """The length of a turn, 0 without turns; FlagError if --pairing=turns is impossible."""
    in_turn = decide_on_turns(pairing, lambda: why_no_turns(sides), "the sides alternate", reporter)
    return TURN_SECONDS if in_turn else 0.0


def decide_on_turns(
    pairing: str, why_not: Callable[[], str | None], otherwise: str, reporter: Reporter
) -> bool:
    """Whether the processes take turns; FlagError if --pairing=turns is impossible.

    Args:
      pairing: value of the flag.
      why_not: returns the reason why they cannot, or None; not called if they shall not.
      otherwise: for a notice, what happens if they cannot.
    """
    if pairing == "alternate":
        return False
    obstacle = why_not()
    if obstacle is None:
        return True
    if pairing == "turns":
        raise FlagError(
            "pairing", "turns", f"is impossible: {obstacle}; leave the flag out, or use alternate"
        )
    reporter.notice(f"{otherwise}, because they cannot take turns: {obstacle}")
    return False
