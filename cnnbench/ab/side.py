"""One side of an experiment: its code and flags, and how a process of it is run."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import cnnbench
from cnnbench.errors import BenchmarkError, FlagError
from cnnbench.machine.software import GitError, git
from cnnbench.processes.child import GRACE_SECONDS, execute
from cnnbench.processes.outcome import Attempt, judge
from cnnbench.records.run import RunRecord

# A worktree of a large repository takes minutes to write.
_GIT_SECONDS = 3600.0

# The working directory is kept off the path: what lies there must not shadow a package.
_LAUNCH = (
    "import sys; root = sys.argv.pop(1); "
    "sys.path[:] = [path for path in (root, *sys.path) if path]; "
)
_RUN = "from cnnbench.cli import entry_point; entry_point()"


@dataclass(frozen=True, kw_only=True)
class Side:
    """What is started.

    Attributes:
      flags: of ``cnnbench run``, common ones included.
      own: the flags that are this side's own.
      python: an interpreter, absolute; the one that runs this if None.
      checkout: folder that the process works in; if it is a checkout of cnnbench, its code
        is what runs.
      revision: how the user named the checkout.
      variables: environment variables, added to those of this process.
    """

    flags: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    python: str | None = None
    checkout: Path | None = None
    revision: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_this_cnnbench(self) -> bool:
        """Whether the code that runs is that of this process, so that flags can be checked."""
        return self.python is None and not self._holds_cnnbench()

    def command(self, record: Path) -> tuple[str, ...]:
        """Program and arguments of a process that writes its record to a file."""
        python = self.python or sys.executable
        flags = (*self.flags, f"--result_json={record}")
        return (python, "-c", launcher(_RUN), self._root(), "run", *flags)

    def description(self) -> str:
        """What is this side's own, in a line, without values of variables."""
        parts = [shlex.join(self.own)] if self.own else []
        parts += [f"python {self.python}"] if self.python else []
        parts += [f"checkout {self.revision or self.checkout}"] if self.checkout else []
        parts += [f"variable {name}" for name in self.variables]
        return ", ".join(parts) or "nothing of its own"

    def _root(self) -> str:
        """The folder that cnnbench is to be imported from; "" for what is installed."""
        if self._holds_cnnbench():
            return str(self.checkout)
        return "" if self.python is not None else own_checkout()

    def _holds_cnnbench(self) -> bool:
        return self.checkout is not None and (self.checkout / "cnnbench" / "__init__.py").is_file()


def launcher(code: str) -> str:
    """Code for ``python -c`` whose first argument is the folder to import cnnbench from.

    Args:
      code: what follows; sees the other arguments as sys.argv has them.
    """
    return _LAUNCH + code


def own_checkout() -> str:
    """The checkout that this process runs cnnbench from; "" if it is installed."""
    package = Path(os.path.abspath(cnnbench.__file__)).parent
    return "" if (package / "models").is_dir() else str(package.parent)


@dataclass(frozen=True)
class SideFlags:
    """The resolved flags of a side; empty where they are unknown.

    Attributes:
      config: every parameter, as JSON values.
      explicit_flags: names of the flags that were given.
      notices: what the run would print about them.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    explicit_flags: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProcessResult:
    """The result of one process.

    Attributes:
      document: its record as JSON values; of a process that left none, one with the error.
      record: the same, decoded.
      status: see `Outcome`; only "ok" is a measurement.
      problem: the error in one line; "" if it is ok.
      seconds: wall time.
    """

    document: dict[str, Any]
    record: RunRecord
    status: str
    problem: str
    seconds: float


def run_once(
    side: Side,
    record: Path,
    log: Path,
    timeout: float,
    *,
    facts: Mapping[str, Any] | None = None,
    like: RunRecord | SideFlags | None = None,
    grace: float = GRACE_SECONDS,
) -> ProcessResult:
    """Runs a process of a side; never raises for what it does.

    Args:
      side: what to start.
      record: file that the process writes.
      log: takes its output and errors.
      timeout: seconds until it and all its children are ended.
      facts: about this machine, for the record of a process that leaves none.
      like: holds the resolved flags, for the same: an earlier run of the side, or
        what `cnnbench.ab.flags.check` found.
      grace: seconds between SIGTERM and SIGKILL.

    Raises:
      KeyboardInterrupt: the process has been ended.
      BenchmarkError: no process can be started.
    """
    started = datetime.now(timezone.utc)
    finished = execute(
        side.command(record.absolute()),
        log,
        timeout,
        grace,
        environment=side.variables,
        folder=side.checkout,
    )
    resolved = SideFlags() if like is None else like
    outcome = judge(
        Attempt(
            kind="run",
            command=("cnnbench", "run", *side.flags),
            config=resolved.config,
            explicit_flags=resolved.explicit_flags,
            environment=facts or {},
            started_at=started,
            record=record,
            log=log,
            finished=finished,
        )
    )
    return ProcessResult(
        document=outcome.document,
        record=RunRecord.from_dict(outcome.document),
        status=outcome.status,
        problem=outcome.message,
        seconds=finished.seconds,
    )


@contextlib.contextmanager
def checked_out(flag: str, text: str) -> Iterator[Path]:
    """A folder with the code of a checkout.

    Args:
      flag: name of the flag that named it, for the error.
      text: a folder, or a revision of the repository that the working directory is in; the
        worktree of a revision is removed afterwards.

    Raises:
      FlagError: it is neither.
      BenchmarkError: git cannot make the worktree.
    """
    if Path(text).is_dir():
        yield Path(text).resolve()
        return
    commit = _commit(text)
    if commit is None:
        raise FlagError(
            flag, text, "is neither a folder nor a revision of the repository you are in"
        )
    with tempfile.TemporaryDirectory(prefix="cnnbench-checkout-") as parent:
        folder = Path(parent).resolve() / commit[:12]
        try:
            git("worktree", "add", "--detach", "--quiet", str(folder), commit, timeout=_GIT_SECONDS)
        except GitError as error:
            raise BenchmarkError(f"git worktree add {text}: {error}") from None
        try:
            yield folder
        finally:
            with contextlib.suppress(GitError):
                git("worktree", "remove", "--force", str(folder), timeout=_GIT_SECONDS)


def _commit(text: str) -> str | None:
    """The commit that a revision names, or None."""
    if not text or text.startswith("-"):  # git would take it for an option
        return None
    try:
        return git("rev-parse", "--verify", "--quiet", f"{text}^{{commit}}")
    except GitError:
        return None
