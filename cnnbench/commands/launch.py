"""``cnnbench launch``: all processes of a job on this machine."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cnnbench.commands import interrupt_on_signals, split_at_dashes
from cnnbench.errors import FlagError, UsageError
from cnnbench.flags import parse_command
from cnnbench.flags.declare import flag, specs_of
from cnnbench.text.terminal import LineWriter

_ABOUT = """\
Usage: cnnbench launch [FLAGS] -- FLAGS OF EVERY PROCESS

Starts all processes of a job on this machine, each on a free port and with its --job_name and
--task_index, and ends when they do (docs/cluster.md). The chief's standard output is that of
this command; what the others print is on standard error, with their names before each line.

  cnnbench launch --workers=2 --ps=1 -- --model=resnet50 --variable_update=parameter_server
  cnnbench launch --workers=2 --towers=2 -- --model=resnet50 --variable_update=collective_all_reduce
"""

_EXIT_CODES = """\
Exit codes: that of the chief; 4 if another process failed; 2 wrong use, before any process is
started; 130 interrupted: the chief's record holds what was measured.
"""


@dataclass(frozen=True, kw_only=True)
class LaunchFlags:
    """Flags of the command."""

    workers: int = flag(1, "Processes with towers.", minimum=1, maximum=256)
    ps: int = flag(0, "Parameter servers.", minimum=0, maximum=256)
    towers: int | None = flag(
        None, "Towers of each worker: its --num_gpus.", minimum=1, maximum=1024
    )
    controller: bool = flag(False, "Start a process that drives the workers.")
    affinity: bool = flag(False, "Divide the processors among the processes.")
    log_dir: str | None = flag(
        None,
        "Folder for a log per process; one that is removed after a success if not given.",
    )


HELP = (_ABOUT, [("Flags", specs_of(LaunchFlags))], _EXIT_CODES)


def main(argv: Sequence[str]) -> int:
    """Runs a job.

    Raises:
      UsageError: wrong flags; nothing has been started.
      KeyboardInterrupt: all processes are gone.
      BenchmarkError: no process can be started, or logs can no longer be written.
    """
    words, flags = split_at_dashes(argv)
    given, arguments = parse_command(words, specs_of(LaunchFlags))
    options = LaunchFlags(**given)
    if arguments:
        raise UsageError(
            f"launch takes no argument {arguments[0]!r}; flags of the processes stand behind --"
        )
    # Imported late: --help and wrong flags need none of it.
    from cnnbench.cluster.ports import ReservedPorts
    from cnnbench.launch.session import Launch, Session
    from cnnbench.launch.tasks import (
        Layout,
        check,
        gpu_variables,
        shares_of_cores,
        task_flags,
    )
    from cnnbench.processes.child import program

    layout = Layout(workers=options.workers, ps=options.ps, controller=options.controller)
    params = check(layout, flags, options.towers)
    if options.affinity:
        shares_of_cores(layout.size)
    logs = _log_folder(options.log_dir)
    interrupt_on_signals()
    show = LineWriter(sys.stderr)
    with ReservedPorts(layout.size) as ports:
        launch = Launch(
            job=layout.job(ports.numbers),
            command=lambda job: (*program(), "run", *task_flags(job, flags, options.towers)),
            variables=lambda job: gpu_variables(job, params),
            logs=logs,
            affinity=options.affinity,
        )
        status = Session(launch, lambda line: show.lines([line])).run()
    if status == 0 and options.log_dir is None:
        shutil.rmtree(logs, ignore_errors=True)
    return status


def _log_folder(given: str | None) -> Path:
    if given is None:
        return Path(tempfile.mkdtemp(prefix="cnnbench-launch-"))
    folder = Path(given)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FlagError("log_dir", given, f"cannot be used: {error.strerror}") from error
    return folder
