"""Guard processes, which clean up after their parent process, even if the parent was killed.

This module uses only the standard library. A guard is started as a script in its own session, so
that signals to the parent do not reach it.

``python -IS guard.py program DESCRIPTORS CORES PROGRAM ARGUMENT...`` runs a program. DESCRIPTORS
begins with one end of a socket pair; only the parent has the other end. A comma and a descriptor
that the program inherits may follow. CORES lists the processors that the program may use; if it is
empty, these are all processors of the parent. When the program ends, the guard sends a message with
the wait status (`cnnbench.base.message`) to the parent. The parent then kills the group, which
includes the guard. If the socket closes before that, the parent is dead, and the guard kills the
group. Otherwise, the guard sleeps.

``python -IS guard.py worktree COMMIT FOLDER GIT...`` keeps a worktree in FOLDER, which must not
exist, in a temporary folder of the parent. GIT is the beginning of a git command
(`cnnbench.machine.repository.safe_git_command`). The guard prints a line of JSON with the error,
and removes the worktree and the temporary folder when standard input is closed: by the parent when
it is done, or by the system when the parent is dead.

A program starts only after its guard has started. Therefore the guard of a program imports neither
`json` nor `socket`, `subprocess`, `threading` or `typing`, which take longer than all of its work.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType

# If memory runs out, the kernel should kill the program, not the parent.
_OOM_SCORE = 500

# Python ignores these signals. A program would inherit this.
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def main(arguments: Sequence[str]) -> None:
    """Runs a guard process. The first argument selects its kind: "program" or "worktree"."""
    kind, *words = arguments
    {"program": guard_program, "worktree": guard_worktree}[kind](words)


def guard_program(arguments: Sequence[str]) -> None:
    """Runs a program in the process group of this guard, and kills the group if the parent dies.

    The function never returns. After the end of the program, the parent kills the group.
    """
    descriptors, cores, *command = arguments
    link, *inherited = map(int, descriptors.split(","))
    os.set_inheritable(link, False)
    # The guard must survive signals to the group, so that it can report the program's status.
    # The handler does nothing. SIG_IGN is not used, because the program would inherit it.
    _handle_signals(lambda *_: None)
    with contextlib.suppress(OSError):
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(str(_OOM_SCORE))
    _thread.start_new_thread(_kill_when_parent_ends, (link,))
    try:
        if cores:
            os.sched_setaffinity(0, map(int, cores.split(",")))
        program = start_program(command)
    except OSError as error:
        import json

        reason = f"{command[0]}: {error.strerror or error}"
        report = json.dumps({"error": reason}).encode()
    else:
        for descriptor in inherited:
            # The guard closes its copies, so that a reader notices when the program closes its own.
            os.close(descriptor)
        _, status, usage = os.wait4(program, 0)
        unit = 1 if sys.platform == "darwin" else 1024
        report = b'{"status": %d, "max_rss_bytes": %d}' % (status, usage.ru_maxrss * unit)
    os.write(link, len(report).to_bytes(4, "big") + report)
    while True:
        signal.pause()


def guard_worktree(arguments: Sequence[str]) -> None:
    """Creates a git worktree, and removes the worktree when the parent process closes standard
    input or dies.
    """
    import json
    import shutil

    commit, folder, *git = arguments
    _handle_signals(signal.SIG_IGN)
    try:
        error = _run_and_get_errors(*git, "worktree", "add", "--detach", "--quiet", folder, commit)
        # The parent process may have died. A buffer would be written again at the end.
        with contextlib.suppress(BrokenPipeError):
            os.write(sys.stdout.fileno(), json.dumps({"error": error}).encode() + b"\n")
        sys.stdin.buffer.read()
    finally:
        shutil.rmtree(os.path.dirname(folder), ignore_errors=True)
        # Git locks an unfinished worktree, and removes a locked worktree only with two --force.
        _run_and_get_errors(*git, "worktree", "remove", "--force", "--force", folder)


def _handle_signals(handler: Callable[[int, FrameType | None], object] | signal.Handlers) -> None:
    for name in ("INT", "TERM", "HUP", "QUIT", "USR1", "USR2"):
        signal.signal(signal.Signals[f"SIG{name}"], handler)


def start_program(command: Sequence[str]) -> int:
    """Starts a program in the process group of this process. Returns its process ID.

    The program inherits standard input, which is /dev/null. OSError if it cannot be started.
    """
    return os.posix_spawnp(command[0], [*command], os.environ, setsigdef=_IGNORED_BY_PYTHON)


def _kill_when_parent_ends(link: int) -> None:
    with contextlib.suppress(OSError):
        while os.read(link, 1):
            pass
    os.killpg(0, signal.SIGKILL)


def _run_and_get_errors(*command: str) -> str:
    """Runs a git command and returns its error messages; "" if the command succeeded."""
    import subprocess

    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except OSError as error:
        return f"git cannot be run: {error}"
    return "" if done.returncode == 0 else os.fsdecode(done.stderr) or "git failed"


if __name__ == "__main__":
    main(sys.argv[1:])
