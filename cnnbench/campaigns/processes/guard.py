"""Guard process that runs a program and ends it with its parent; standard library only.

Started as a file: ``python -IS guard.py DESCRIPTOR PROGRAM ARGUMENT...`` in its own session.
DESCRIPTOR is one end of a socket pair whose other end only the parent holds, optionally followed by
a comma and a descriptor that the program inherits. When the program ends, a line of JSON with its
wait status goes to the parent, which then kills the group including the guard. When the socket
closes first, the parent is dead and the guard kills the group. In between it sleeps.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence

# If memory runs out, the kernel should choose the program and not the parent.
_OOM_SCORE = 500


def main(arguments: Sequence[str]) -> None:
    """Runs the guard; never returns, because its group is killed in the end."""
    descriptor, *inherited = map(int, arguments[0].split(","))
    link = socket.socket(fileno=descriptor)
    # These are for the program, which would inherit SIG_IGN; the guard stays to report its status.
    for name in ("INT", "TERM", "HUP", "QUIT", "USR1", "USR2"):
        signal.signal(signal.Signals[f"SIG{name}"], lambda *_: None)
    with contextlib.suppress(OSError):
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(str(_OOM_SCORE))
    threading.Thread(target=_watch, args=(link,), daemon=True).start()
    link.sendall(_run(arguments[1:], inherited).encode() + b"\n")
    threading.Event().wait()


def _run(command: Sequence[str], inherited: Sequence[int]) -> str:
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=inherited)
    except OSError as error:
        return json.dumps({"error": f"{command[0]}: {error.strerror or error}"})
    for descriptor in inherited:
        os.close(descriptor)  # its other end detects the end of the program
    _, status, usage = os.wait4(process.pid, 0)
    unit = 1 if sys.platform == "darwin" else 1024
    return json.dumps({"status": status, "max_rss_bytes": usage.ru_maxrss * unit})


def _watch(link: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while link.recv(1):
            pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
