"""One side of an experiment: its code and flags, and how a process of it is run."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import cnnbench
from cnnbench.driver.duration import Work
from cnnbench.processes.child import GRACE_SECONDS, Finished, execute
from cnnbench.processes.outcome import Attempt, judge
from cnnbench.processes.turns import Command, execute_in_turn
from cnnbench.records.run import RunRecord

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
        return (python, "-c", launcher(_RUN), self.root, "run", *flags)

    def description(self) -> str:
        """What is this side's own, in a line, without values of variables."""
        parts = [shlex.join(self.own)] if self.own else []
        parts += [f"python {self.python}"] if self.python else []
        parts += [f"checkout {self.revision or self.checkout}"] if self.checkout else []
        parts += [f"variable {name}" for name in self.variables]
        return ", ".join(parts) or "nothing of its own"

    @property
    def root(self) -> str:
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


def ask(
    side: Side, code: str, *arguments: str, ours: bool, seconds: float
) -> subprocess.CompletedProcess[bytes]:
    """Runs code in the folder and with the variables of a side, and waits for its end.

    Args:
      side: see `Side`.
      code: sees the arguments from sys.argv[1] on.
      arguments: of the code.
      ours: whether it imports this cnnbench, in place of the side's.
      seconds: until it is killed.

    Returns:
      How it ended, with its output.

    Raises:
      OSError: it cannot be started.
      subprocess.TimeoutExpired: it did not end.
    """
    python, root = (None, own_checkout()) if ours else (side.python, side.root)
    return subprocess.run(
        [python or sys.executable, "-c", launcher(code), root, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **side.variables},
        cwd=side.checkout,
        timeout=seconds,
        check=False,
    )


@dataclass(frozen=True)
class SideFlags:
    """The resolved flags of a side; empty where they are unknown.

    Attributes:
      config: every parameter, as JSON values.
      explicit_flags: names of the flags that were given.
      notices: what the run would print about them.
      work: what the run computes.
      no_turns: why the run cannot step in turn with another one; None if it can.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    explicit_flags: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    work: Work | None = None
    no_turns: str | None = None


@dataclass(frozen=True)
class ProcessResult:
    """The result of one process.

    Attributes:
      document: its record as JSON values; of a process that left none, one with the error.
      record: the same, decoded.
      status: see `Outcome`; only "ok" is a measurement.
      problem: the error in one line; "" if it is ok.
      seconds: wall time.
      lost: see `Outcome`.
    """

    document: dict[str, Any]
    record: RunRecord
    status: str
    problem: str
    seconds: float
    lost: str = ""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A process of a side that is to be run.

    Attributes:
      side: what to start.
      record: file that the process writes.
      log: takes its output and errors.
      facts: about this machine, for the record of a process that leaves none.
      like: holds the resolved flags, for the same: an earlier run of the side, or
        what `cnnbench.ab.flags.check` found.
    """

    side: Side
    record: Path
    log: Path
    facts: Mapping[str, Any] | None = None
    like: RunRecord | SideFlags | None = None

    @property
    def command(self) -> Command:
        """What is executed."""
        return Command(
            command=self.side.command(self.record.absolute()),
            log=self.log,
            environment=self.side.variables,
            folder=self.side.checkout,
        )


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
      side, record, log, facts, like: see `Sample`.
      timeout: seconds until it and all its children are ended.
      grace: seconds between SIGTERM and SIGKILL.

    Raises:
      KeyboardInterrupt: the process has been ended.
      BenchmarkError: no process can be started.
    """
    sample = Sample(side=side, record=record, log=log, facts=facts, like=like)
    started = datetime.now(timezone.utc)
    one = sample.command
    finished = execute(
        one.command, one.log, timeout, grace, environment=one.environment, folder=one.folder
    )
    return _result(sample, started, finished)


def run_in_turn(
    samples: Sequence[Sample], timeout: float, turn_seconds: float, grace: float = GRACE_SECONDS
) -> list[ProcessResult]:
    """Runs processes that are alive at the same time and step in turn; as `run_once`.

    Args:
      samples: what to run; the first one has the first turn.
      timeout: seconds that each may run, its waits left out.
      turn_seconds: length of a turn.
      grace: seconds between SIGTERM and SIGKILL.
    """
    started = datetime.now(timezone.utc)
    commands = [sample.command for sample in samples]
    ended = execute_in_turn(commands, timeout, turn_seconds, grace)
    return [
        _result(sample, started, finished) for sample, finished in zip(samples, ended, strict=True)
    ]


def _result(sample: Sample, started: datetime, finished: Finished) -> ProcessResult:
    resolved = SideFlags() if sample.like is None else sample.like
    outcome = judge(
        Attempt(
            kind="run",
            command=("cnnbench", "run", *sample.side.flags),
            config=resolved.config,
            explicit_flags=resolved.explicit_flags,
            environment=sample.facts or {},
            started_at=started,
            record=sample.record,
            log=sample.log,
            finished=finished,
        )
    )
    return ProcessResult(
        document=outcome.document,
        record=RunRecord.from_dict(outcome.document),
        status=outcome.status,
        problem=outcome.message,
        seconds=finished.seconds,
        lost=outcome.lost,
    )
