"""A and B, which an experiment compares: their flags, checkouts and processes.

The flags of A and of B are resolved in child processes, with the working directory and the
environment variables of the measured processes. So relative paths and imports work as in the
measured processes, and this process loads no plug-in.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from cnnbench.base import plugins
from cnnbench.base.terminal import ChildProcessReporter, print_notice
from cnnbench.base.urls import is_url
from cnnbench.campaigns.ab.worktree import worktree
from cnnbench.campaigns.launch import JobLayout, flags_to_arguments, resolve_run, run_command_words
from cnnbench.campaigns.processes import (
    COMMAND_LINE,
    NO_TURNS_OF_JOBS,
    BenchmarkCommand,
    Child,
    Command,
    ConfigurationIdentity,
    ProcessRequest,
    ResolvedRun,
    ResultsFolder,
    blank_record,
    identity_values,
    launcher_code,
    own_checkout,
)
from cnnbench.errors import DataError, FlagError, UsageError
from cnnbench.flags import (
    ACCEPTED,
    FLAG_FILE,
    FLAGS,
    RENAMED,
    RunPart,
    names_of_flags,
    parse_args,
    parse_flags,
    specs_of,
    split_command_line,
)
from cnnbench.flags.groups.output import OutputParams
from cnnbench.machine import repository
from cnnbench.machine.facts import may_record_variable
from cnnbench.machine.repository import (
    GitError,
    abbreviate_hash,
    git,
    uncommitted_changes_text,
)
from cnnbench.records.codec import decode, encode
from cnnbench.records.run import RunRecord
from cnnbench.records.subject import Subject

TURN_SECONDS = 0.3
"""Seconds that one process runs before the next process continues (docs/evidence.md: effect)."""

_MODULES = {
    "launch": ("campaigns/launch.py", "campaigns/launch/tasks.py", "launch/tasks.py"),
    "profile_json": ("records/profiles.py", "records/step_profile.py"),
    "turns": ("run/runtime/turns.py", "runtime/turns.py"),
}
"""Module files by feature. A version of cnnbench has the feature if it contains one of them."""

_HAS_FILE = (
    "import os, cnnbench; home = os.path.dirname(cnnbench.__file__); "
    "sys.exit(not any(os.path.isfile(os.path.join(home, name)) for name in sys.argv[1:]))"
)
_ANSWER_SECONDS = 60.0
_VERSIONS = """\
import json, platform
try:
    from cnnbench.machine import facts
    from cnnbench.machine.cpu import Host
    packages = getattr(facts, "package_versions", None) or facts.packages
except ImportError:  # a version from before these modules were merged
    from cnnbench.machine.host import Host
    from cnnbench.machine.software import packages
print(json.dumps({"python": platform.python_version(), **packages(Host())}))
"""


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
      cores: processors that the processes may use; None for the processors of this process.
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
    cores: Collection[int] | None = None

    @cached_property
    def given_flags(self) -> dict[str, str]:
        """The flags that were given for A or B, as text by flag name. Flags in flag files are
        included.

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
            name: texts_of_flag[-1] for name, texts_of_flag in texts.items() if name not in RENAMED
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

    def measured_code(self) -> Subject:
        """Repository, commit and uncommitted changes of the code that processes of A or B run."""
        return repository.measured_code(self._config, self.checkout, self.resolved.parts)

    @property
    def _config(self) -> Mapping[str, object]:
        return self.resolved.config or self.given_flags

    def identity(self) -> ConfigurationIdentity:
        """The flags, interpreter and environment variables of A or B, which `--resume` must not
        change.
        """
        shown = {name: text for name, text in self.variables.items() if may_record_variable(name)}
        # Stays empty if the interpreter does not report the versions of its packages.
        packages: Mapping[str, object] = {}
        if self.python is not None:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired, ValueError):
                said = run_code(self, _VERSIONS, use_own_cnnbench=False, timeout=_ANSWER_SECONDS)
                packages = dict(json.loads(said.stdout))
        identity = identity_values(
            self.resolved.identity or self.given_flags,
            flags=self.flags,
            python=self.python,
            job=() if self.layout is None else self.layout.flags,
            variables=sorted(self.variables),
            packages=packages,
            **shown,
        )
        if self.checkout is not None:
            # A worktree has another path in a later session.
            folder = json.dumps(f"{self.checkout}{os.sep}")[1:-1]
            identity = json.loads(json.dumps(encode(identity)).replace(folder, ""))
        return ConfigurationIdentity(
            identity, self._config, self.checkout, self.resolved.parts, self.is_this_cnnbench
        )

    def _contains_cnnbench(self) -> bool:
        return self.checkout is not None and (self.checkout / "cnnbench" / "__init__.py").is_file()


def run_code(
    side: AbSide, code: str, *arguments: str, use_own_cnnbench: bool, timeout: float
) -> subprocess.CompletedProcess[bytes]:
    """Runs Python code in the working directory of A or B, with the environment variables of A or
    B.

    The code finds `arguments` in sys.argv[1:]. If `use_own_cnnbench`, it imports the cnnbench of
    this process, otherwise the cnnbench of A or B. Raises OSError if the code cannot be started,
    and subprocess.TimeoutExpired if it has not ended after `timeout` seconds.
    """
    python, root = (None, own_checkout()) if use_own_cnnbench else (side.python, side.import_folder)
    command = Command(
        words=[python or sys.executable, "-c", launcher_code(code), root, *arguments],
        log=Path(os.devnull),
        environment=side.variables,
        folder=side.checkout,
    )
    with tempfile.TemporaryFile() as output:
        with Child(command, stdout=output.fileno()) as child:
            ended = child.wait(timeout)
        if ended is None:
            raise subprocess.TimeoutExpired(command.words, timeout)
        if ended.error is not None or ended.code is None:
            raise OSError(ended.error or "the process was killed")
        output.seek(0)
        return subprocess.CompletedProcess(command.words, ended.code, output.read())


def supports(side: AbSide, feature: str) -> bool:
    """Whether the cnnbench that A or B runs has a feature, by its name in `_MODULES`. False if
    unknown.

    Files are checked instead of imports, because an editable installation would provide modules
    that a checkout lacks.
    """
    if side.is_this_cnnbench:
        return True
    paths = _MODULES[feature]
    try:
        done = run_code(side, _HAS_FILE, *paths, use_own_cnnbench=False, timeout=_ANSWER_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


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
        cores=side.cores,
        record=record,
        blank=blank_record(RunRecord.kind, command, side.resolved),
    )


_ASK = "from cnnbench.campaigns.ab.side import print_answer; print_answer(*sys.argv[1:])"
# Resolving flags has a time limit, because the import of a plug-in may never return.
_SECONDS = 120.0

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


@contextlib.contextmanager
def opened_sides(
    made: Sequence[AbSide], names: Sequence[str], reporter: ChildProcessReporter, advice: str
) -> Iterator[dict[str, AbSide]]:
    """Context manager: yields A and B, of which `made` has the flags, with temporary worktrees of
    their commits, resolved flags and the measured code.

    Raises UsageError for invalid flags, as far as this version knows the flags, and if A and B are
    equal (`advice` ends the message).

    Args:
      names: "a" and "b", or twice the same for an A/A measurement.
    """
    with contextlib.ExitStack() as stack:
        placed = []
        for name, side in zip("AB", made, strict=True):
            if side.commit is not None:
                if text := uncommitted_changes_text(name, side.commit):
                    print_notice(text)
                side = replace(side, checkout=stack.enter_context(worktree(side.commit)))
            reason = "cannot be used here, because a record of each process is kept"
            refuse_flags(side, RESERVED, reason)
            if side.layout and not supports(side, "launch"):
                reason = f"the cnnbench of side {name} has no launch, or cannot be started"
                raise FlagError("workers", side.layout.workers, reason)
            placed.append(side)
        a = b = resolve_flags(placed[0], "A")
        if placed[1] != placed[0]:
            b = resolve_flags(placed[1], "B")
        for notice in dict.fromkeys((*a.resolved.notices, *b.resolved.notices)):
            reporter.notice(notice)
        a, b = (
            replace(side, subject=replace(side.measured_code(), side=name))
            for side, name in zip((a, b), names, strict=True)
        )
        if len(set(names)) > 1:
            _refuse_equal_sides(a, b, advice)
        yield {"a": a, "b": b}


def _refuse_equal_sides(a: AbSide, b: AbSide, advice: str) -> None:
    configs = [side.resolved.identity for side in (a, b)]
    code = a.code_name
    same_flags = a.flags == b.flags or (bool(configs[0]) and configs[0] == configs[1])
    same_code = (a.python, a.variables, code) == (b.python, b.variables, b.code_name)
    if not (same_flags and same_code):
        return
    what = "" if a.checkout is None else f": {a.revision} and {b.revision} are both {code}"
    raise UsageError(
        f"A and B are the same{what}; use --a and --b, --a_python, --a_checkout or "
        f"--a_env to make them differ{advice}"
    )


def resolve_flags(side: AbSide, name: str = "") -> AbSide:
    """Returns a copy of A or B whose flags are resolved in a child process, as far as this cnnbench
    knows the flags.

    Raises UsageError if a flag is invalid. The message begins with `name`, if given, and with the
    code of a side that has its own code.
    """
    try:
        layout = json.dumps(None if side.layout is None else side.layout._asdict())
        done = run_code(side, _ASK, layout, *side.flags, use_own_cnnbench=True, timeout=_SECONDS)
        answer = json.loads(done.stdout.splitlines()[-1])
        error, resolved = answer["error"], decode(ResolvedRun, answer["resolved"])
    except (OSError, subprocess.TimeoutExpired, ValueError, LookupError, TypeError):
        # If a plug-in has ended the process, the measured process will report the reason.
        return replace(side, resolved=ResolvedRun())
    if not side.is_this_cnnbench:
        return replace(side, resolved=replace(resolved, notices=()))
    if error is not None:
        code = side.code_name
        if side.revision and side.commit and not side.commit.startswith(side.revision):
            code = f"{side.revision}, {code}"
        raise UsageError(f"side {name} ({code}): {error}" if name and code else str(error))
    return replace(side, resolved=resolved)


def check_flags_of_commit(side: AbSide, commit: str, folder: str | Path = ".") -> None:
    """Raises UsageError for flags that are invalid for all commits, before `commit` is checked out.

    Flags are not checked if the commit contains cnnbench, which may have other flags, or if a flag
    file is given, which may be in the commit. Relative paths of outputs are refused, because the
    files would be removed with the worktree.
    """
    for name, value in replace(side, checkout=None).given_flags.items():
        paths = value.split(",") if name in WRITTEN else ()
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
    """Main function of the child process of `resolve_flags`: prints resolved flags as JSON.

    `job` is a JSON `JobLayout` or null.
    """
    error, resolved = None, ResolvedRun()
    try:
        fields = json.loads(job)
        layout = None if fields is None else JobLayout(**fields)
        resolved = resolve_run(parse_args(flags), layout)
        resolved = replace(resolved, packages=plugins.loaded_packages())
    except (UsageError, DataError) as refusal:
        error = str(refusal)
    print("\n" + json.dumps({"error": error, "resolved": encode(resolved)}))


def why_not_interleavable(sides: Mapping[str, AbSide]) -> str | None:
    """Returns why the processes of A and B cannot run interleaved (docs/ab.md), or None if they
    can.
    """
    for name, side in sides.items():
        obstacle = NO_TURNS_OF_JOBS if side.layout else side.resolved.no_turns
        if obstacle is None and not supports(side, "turns"):
            obstacle = "its version of cnnbench does not support this"
        if obstacle is not None:
            return f"side {name.upper()}: {obstacle}"
    return None


def choose_time_slice_seconds(
    pairing: str,
    why_not: Callable[[], str | None],
    reporter: ChildProcessReporter,
    otherwise: str = "one process runs after the other",
) -> float:
    """Returns for how many seconds processes alternately run steps, or 0 if they do not run
    interleaved.

    Raises FlagError if --pairing=turns is impossible.

    Args:
      pairing: value of the flag.
      why_not: returns why the processes cannot run interleaved, or None. It is not called for
        --pairing=alternate.
      otherwise: what happens if the processes cannot run interleaved, for a notice.
    """
    if pairing == "alternate":
        return 0.0
    obstacle = why_not()
    if obstacle is None:
        return TURN_SECONDS
    if pairing == "turns":
        raise FlagError(
            "pairing", "turns", f"is impossible: {obstacle}; use auto or alternate instead"
        )
    reporter.notice(
        f"{otherwise}, because the processes cannot run interleaved in slices of "
        f"{TURN_SECONDS:g} s: {obstacle}"
    )
    return 0.0
