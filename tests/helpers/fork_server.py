"""A program that imports what its children need, and forks one for each request: see `forked`.

Standard library only, since it also runs without site-packages.

Usage: fork_server.py DESCRIPTOR CODE, a listening socket and what to run first.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import select
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

compiled = functools.cache(functools.partial(compile, mode="exec"))


def serve(listener: socket.socket) -> None:
    """Forks until the last of those who have connected is gone.

    A request has a socket with it, to which the child sends its number, and this program how the
    child has ended.
    """
    asking: set[socket.socket] = set()
    while not asking:
        asking = accepted(listener)
    children: dict[int, tuple[int, socket.socket]] = {}
    while asking:
        for ready in select.select([listener, *asking, *children], [], [])[0]:
            if ready is listener:
                asking |= accepted(listener)
                continue
            if ready in children:
                child, link = children.pop(ready)
                os.close(ready)
                link.send(b"%d" % os.waitpid(child, 0)[1])
                link.close()
                continue
            request, descriptors, *_ = socket.recv_fds(ready, 1 << 20, 1)
            if not request:
                asking.remove(ready)
                ready.close()
                continue
            link = socket.socket(fileno=descriptors[0])
            ask = json.loads(request)
            with contextlib.suppress(SyntaxError, ValueError):  # which the child says
                compiled(ask["code"], ask["argv"][0])  # once for all children
            child = os.fork()
            if not child:
                for ours in (listener, *asking):  # a child may outlive this program
                    ours.close()
                end_with(functools.partial(begin, ask, link))
            children[os.pidfd_open(child)] = child, link


def accepted(listener: socket.socket) -> set[socket.socket]:
    """The next connection, or none if it is another user's, who could find the name."""
    link, _ = listener.accept()
    found = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if found[1] == os.getuid():
        return {link}
    link.close()
    return set()


def begin(ask: dict[str, Any], link: socket.socket) -> None:
    """Runs the code of a request."""
    os.setsid()
    gc.freeze()  # what is loaded, as where a process loads it itself
    link.send(b"%d" % os.getpid())
    link.recv(1)  # by then it can be ended: its first deed may be to interrupt who asked
    for number, path in ((0, os.devnull), (1, ask["out"]), (2, ask["err"])):
        opened = os.open(path, (os.O_WRONLY | os.O_APPEND) if number else os.O_RDONLY)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(ask["folder"])
    os.environ.clear()
    os.environ.update(ask["environment"])
    sys.argv[:] = ask["argv"]
    exec(compiled(ask["code"], sys.argv[0]), {"__name__": "__main__", "__file__": sys.argv[0]})


def end_with(run: Callable[[], object]) -> NoReturn:
    """Calls a function and ends this process as an interpreter does, but for its clean-up."""
    status = 1
    try:
        run()
        status = 0
    except SystemExit as end:
        status = status_of(end.code)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def status_of(code: object) -> int:
    """The exit code that follows from the argument of `sys.exit`; prints a text."""
    if isinstance(code, str):
        print(code, file=sys.stderr)
    return code & 255 if isinstance(code, int) else int(code is not None)


if __name__ == "__main__":
    if os.fork():
        os._exit(0)  # whoever starts it need not wait for its end
    exec(sys.argv[2])
    gc.freeze()
    serve(socket.socket(fileno=int(sys.argv[1])))
