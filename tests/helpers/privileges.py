"""Work in forked processes: one that may mount folders, and one without privileges of root."""

from __future__ import annotations

import ctypes
import os
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

_BIND, _DETACH = 4096, 2  # of mount(2) and umount2(2)
_NEW_USER, _NEW_MOUNTS = 0x10000000, 0x00020000  # of unshare(2)
_CAPABILITIES = 0x20080522  # version of capset(2)
_REFUSED = 77


def mount(source: str | Path, target: str | Path) -> None:
    """Mounts a folder at another one; OSError if that is refused."""
    _call("mount", os.fsencode(source), os.fsencode(target), None, _BIND, None)


def umount(target: str | Path) -> None:
    """Unmounts a folder, also if it is in use; OSError if that is refused."""
    _call("umount2", os.fsencode(target), _DETACH)


def mounting(work: Callable[[], object]) -> None:
    """Runs work in a forked process that may mount; skips the test where that is impossible."""
    maps = {"setgroups": "deny"}
    for name, number in (("uid_map", os.geteuid()), ("gid_map", os.getegid())):
        maps[name] = f"{number} {number} 1"

    def enter() -> None:
        _call("unshare", _NEW_USER | _NEW_MOUNTS)
        for name, text in maps.items():
            Path("/proc/self", name).write_text(text, encoding="ascii")

    _forked(enter, work)


def unprivileged(work: Callable[[], object]) -> None:
    """Runs work in a forked process that permissions of files bind, also if its user is root."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES, 0)
    _forked(lambda: _call("capset", header, (ctypes.c_uint32 * 6)()), work)


def _forked(prepare: Callable[[], None], work: Callable[[], object]) -> None:
    reader, writer = os.pipe()
    process = os.fork()
    if not process:
        code = 1
        try:
            prepare()
            try:
                work()
                code = 0
            except BaseException:
                os.write(writer, traceback.format_exc().encode()[-4000:])
        except OSError:
            code = _REFUSED
        finally:
            os._exit(code)
    os.close(writer)
    with open(reader, encoding="utf-8", errors="replace") as file:
        text = file.read()
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if code == _REFUSED:
        pytest.skip("the system does not allow it")
    assert code == 0, text


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments):
        raise OSError(ctypes.get_errno(), f"{name} failed")
