"""Runs one program and ends it when its parent dies; standard library only.

Started as a file: ``python -I guard.py DESCRIPTOR PROGRAM ARGUMENT...`` in a session of its
own. The descriptor is one end of a socket pair whose other end only the parent holds. When
the program ends, a line of JSON with its wait status goes to the parent, which then kills the
group including the guard. When the socket closes first, the parent is dead and the guard kills
the group itself. In between it sleeps and does not disturb a measurement.
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
    """Never returns: the group it leads is killed, by the parent or by itself."""
    link = socket.socket(fileno=int(arguments[0]))
    # These are for the program; the guard stays to report its status.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _ignore)
    _prefer_for_oom_killer()
    threading.Thread(target=_watch, args=(link,), daemon=True).start()
    link.sendall(_run(arguments[1:]).encode() + b"\n")
    threading.Event().wait()


def _run(command: Sequence[str]) -> str:
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as error:
        return json.dumps({"error": f"{command[0]}: {error.strerror or error}"})
    _, status, usage = os.wait4(process.pid, 0)
    unit = 1 if sys.platform == "darwin" else 1024
    return json.dumps({"status": status, "max_rss_bytes": usage.ru_maxrss * unit})


def _watch(link: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while link.recv(1):
            pass
    os.killpg(0, signal.SIGKILL)


def _ignore(number: int, frame: object) -> None:
    """A handler, because the program would inherit SIG_IGN."""
    del number, frame


def _prefer_for_oom_killer() -> None:
    with contextlib.suppress(OSError):
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(str(_OOM_SCORE))


if __name__ == "__main__":
    main(sys.argv[1:])
