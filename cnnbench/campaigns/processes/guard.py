"""Guard process that runs a program, and ends it when the parent ends.

Uses only the standard library.

The guard is started as ``python -IS guard.py DESCRIPTOR PROGRAM ARGUMENT...`` in its own session.
DESCRIPTOR is one end of a socket pair; only the parent has the other end. A comma and a descriptor
that the program inherits may follow. When the program ends, the guard sends a line of JSON with the
wait status to the parent. The parent then kills the group, which includes the guard. If the socket
closes before that, the parent is dead, and the guard kills the group. Otherwise, the guard sleeps.
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

# If memory runs out, the kernel should kill the program, not the parent.
_OOM_SCORE = 500


def main(arguments: Sequence[str]) -> None:
    """Runs the guard. Never returns, because the group is killed at the end."""
    descriptor, *inherited = map(int, arguments[0].split(","))
    link = socket.socket(fileno=descriptor)
    # Signals to the group are for the program; the guard must survive them to report the status. A
    # handler is set instead of SIG_IGN, because the program would inherit SIG_IGN.
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
        # When the program ends too, the reader at the other end sees the end of the stream.
        os.close(descriptor)
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
