"""Process that keeps a temporary worktree while its parent lives; standard library only.

Started as a file: ``python -I keeper.py COMMIT GIT...``, where GIT is the beginning of a git
command (`cnnbench.machine.repository.command`), in its own session, so that signals for the parent
do not reach it. It prints a line of JSON with the folder or the error, and removes the worktree
when standard input is closed: by the parent when done, or by the system when the parent is dead.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path


def main(commit: str, *git: str) -> None:
    """Makes the worktree of a commit, waits, and removes it."""
    for name in ("INT", "TERM", "HUP", "QUIT", "USR1", "USR2"):
        signal.signal(signal.Signals[f"SIG{name}"], signal.SIG_IGN)
    parent = Path(tempfile.mkdtemp(prefix="cnnbench-checkout-")).resolve()
    folder = parent / commit[:12]
    try:
        error = _run(*git, "worktree", "add", "--detach", "--quiet", str(folder), commit)
        with contextlib.suppress(BrokenPipeError):  # the parent has stopped waiting
            print(json.dumps({"folder": str(folder), "error": error}), flush=True)
        sys.stdin.buffer.read()
    finally:
        shutil.rmtree(parent, ignore_errors=True)
        # Git's entry of the worktree; forced twice, because an unfinished one is locked.
        _run(*git, "worktree", "remove", "--force", "--force", str(folder))


def _run(*command: str) -> str:
    """The errors of a command; "" if it succeeded."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except OSError as error:
        return f"git cannot be run: {error}"
    return "" if done.returncode == 0 else os.fsdecode(done.stderr) or "git failed"


if __name__ == "__main__":
    main(*sys.argv[1:])
