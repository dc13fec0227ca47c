"""Guard processes, which clean up after their parent process, even if the parent was killed.

This module uses only the standard library. A guard is started as a script in its own session, so
that signals to the parent do not reach it.

``python -IS guard.py DESCRIPTORS KIND ARGUMENT...`` starts a guard. DESCRIPTORS is the link, an end
of a socket pair; only the parent has the other end. A guard sends one message on the link
(`cnnbench.base.message`), and cleans up when the link is closed: by the parent when it is done, or
by the system when the parent is dead.

``program CORES PROGRAM ARGUMENT...`` runs a program on the processors CORES; if CORES is empty, on
all processors of the parent. A comma and a descriptor that the program inherits may follow the
link. The message has the wait status of the program. The parent then kills the group, which
includes the guard; if the parent is dead, the guard kills the group.

``worktree COMMIT FOLDER GIT...`` keeps a worktree in FOLDER, which must not exist, in a temporary
folder of the parent. GIT is the beginning of a git command
(`cnnbench.machine.repository.safe_git_command`). The message has git's error. In the end, the guard
removes the worktree and the temporary folder.

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
    """The program of a guard process, of the kind "program" or "worktree".

    The kind "program" never returns.
    """
    descriptors, kind, *words = arguments
    link, *inherited = map(int, descriptors.split(","))
    os.set_inheritable(link, False)
    if kind == "program":
        guard_program(link, inherited, *words)
    else:
        guard_worktree(link, *words)


def guard_program(link: int, inherited: Sequence[int], cores: str, *command: str) -> None:
    """Runs a program in the process group of this guard, and kills the group if the parent dies.

    The function never returns. After the end of the program, the parent kills the group.
    """
    # The guard must survive signals to the group, so that it can report the program's status.
    # The handler does nothing. SIG_IGN is not used, because the program would inherit it.
    _handle_signals(lambda *_: None)
    with contextlib.suppress(OSError):
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(str(_OOM_SCORE))
    _thread.start_new_thread(_die_with_parent, (link,))
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
        _, status = os.waitpid(program, 0)
        report = b'{"status": %d}' % status
    _send(link, report)
    while True:
        signal.pause()


def guard_worktree(link: int, commit: str, folder: str, *git: str) -> None:
    """Creates a git worktree, and removes it when the parent process closes the link or dies."""
    import json
    import shutil

    _handle_signals(signal.SIG_IGN)
    try:
        error = _run_git(*git, "worktree", "add", "--detach", "--quiet", folder, commit)
        with contextlib.suppress(OSError):  # The parent process may have died.
            _send(link, json.dumps({"error": error}).encode())
        _wait_for_parent(link)
    finally:
        shutil.rmtree(os.path.dirname(folder), ignore_errors=True)
        # Git locks an unfinished worktree, and removes a locked worktree only with two --force.
        _run_git(*git, "worktree", "remove", "--force", "--force", folder)


def _handle_signals(handler: Callable[[int, FrameType | None], object] | signal.Handlers) -> None:
    for name in ("INT", "TERM", "HUP", "QUIT", "USR1", "USR2"):
        signal.signal(signal.Signals[f"SIG{name}"], handler)


def start_program(command: Sequence[str]) -> int:
    """Starts a program in the process group of this process. Returns its process ID.

    The program inherits standard input, which is /dev/null. OSError if it cannot be started.
    """
    return os.posix_spawnp(command[0], [*command], os.environ, setsigdef=_IGNORED_BY_PYTHON)


def _send(link: int, text: bytes) -> None:
    os.write(link, len(text).to_bytes(4, "big") + text)


def _wait_for_parent(link: int) -> None:
    with contextlib.suppress(OSError):
        while os.read(link, 1):
            pass


def _die_with_parent(link: int) -> None:
    _wait_for_parent(link)
    os.killpg(0, signal.SIGKILL)


def _run_git(*command: str) -> str:
    """Runs a git command and returns its error messages; "" if the command succeeded."""
    import subprocess

    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except OSError as error:
        return f"git cannot be run: {error}"
    return "" if done.returncode == 0 else os.fsdecode(done.stderr) or "git failed"


if __name__ == "__main__":
    main(sys.argv[1:])
