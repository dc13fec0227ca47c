"""Creates, updates or repairs the checkout's ``.venv``: the slow path of ``environment.sh``.

This script needs only the standard library, and runs on any Python that the package supports. The
file ``.venv/cnnbench-state`` describes the environment. During a change, its status is
``building``, so that an interrupted installation is recognised and deleted. An environment that
another program created has no such file; packages are added to it, and it is never deleted.
"""

from __future__ import annotations

import argparse
import enum
import fcntl
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

STATE_FILE = "cnnbench-state"
LOG_FILE = "install.log"


class State(NamedTuple):
    """Content of an environment. ``environment.sh`` also reads the file that stores it.

    Attributes:
      status: ``ready``, or ``building`` while it is being changed.
      key: Checksum of the files that determine the requirements.
      version: Python version, such as ``3.11``.
      root: The checkout that the environment points into.
      extras: The extras of ``pyproject.toml`` that are installed.
    """

    status: str
    key: str
    version: str
    root: str
    extras: tuple[str, ...]


class EnvironmentChange(enum.Enum):
    """Changes that an environment needs."""

    NOTHING = "nothing"
    INSTALL = "install into the environment that is there"
    REBUILD = "delete it and make a new one"
    REFUSE = "has no working Python and was not made by this script; remove it"


def needed_change(
    exists: bool, state: State | None, python_works: bool, wanted: State
) -> EnvironmentChange:
    """Determines the changes that an environment needs.

    Args:
      python_works: Whether the interpreter of the environment runs.
      wanted: The required state; the environment may have more extras.
    """
    if not exists:
        return EnvironmentChange.REBUILD
    if state is None:
        return EnvironmentChange.INSTALL if python_works else EnvironmentChange.REFUSE
    same_base = state.version == wanted.version and state.root == wanted.root
    if state.status != "ready" or not python_works or not same_base:
        return EnvironmentChange.REBUILD
    if state.key == wanted.key and set(wanted.extras) <= set(state.extras):
        return EnvironmentChange.NOTHING
    return EnvironmentChange.INSTALL


def read_state(folder: Path) -> State | None:
    """Reads the state of the environment in a folder; None if it is missing or incomplete."""
    try:
        lines = (folder / STATE_FILE).read_text(encoding="utf-8").split("\n")
    except OSError:
        return None
    if len(lines) < 6:
        return None
    status, key, version, root, extras = lines[:5]
    return State(status, key, version, root, tuple(extras.split()))


def write_state(folder: Path, state: State) -> None:
    """Replaces the state file in one step."""
    temporary = folder / (STATE_FILE + ".new")
    lines = [*state[:4], " ".join(state.extras), ""]
    temporary.write_text("\n".join(lines), encoding="utf-8")
    os.replace(temporary, folder / STATE_FILE)


def python_version(python: Path) -> str | None:
    """Version such as ``3.11`` of an interpreter; None if the interpreter does not run."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


@contextmanager
def locked(path: Path, waiting: str) -> Iterator[int]:
    """Locks a file exclusively; the system releases the lock when the last owner ends.

    Yields the descriptor of the file. A child process that inherits the descriptor also owns the
    lock.
    """
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(waiting, file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


def install(folder: Path, wanted: State, lock: int) -> int:
    """Runs pip into the environment; its output goes to the log. Returns pip's exit status.

    pip inherits the lock. If this process is killed, no other process deletes the environment while
    pip still writes to it.
    """
    extras = f"[{','.join(wanted.extras)}]" if wanted.extras else ""
    pip = (str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check")
    command = (*pip, "install", "--no-input", "--editable", f"{wanted.root}{extras}")
    log = folder / LOG_FILE
    with log.open("w", encoding="utf-8") as file:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            pass_fds=(lock,),
            check=False,
        )
    if done.returncode:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        print("\n".join(lines[-12:]), file=sys.stderr)
    return done.returncode


def make(args: argparse.Namespace, lock: int) -> int:
    """Changes the environment to the wanted state; returns an exit status."""
    folder, caller = args.root / ".venv", args.caller
    found = python_version(folder / "bin" / "python")
    state = read_state(folder)
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if found and state and not args.this_python:
        version = state.version
    wanted = State("ready", args.key, version, str(args.root), tuple(sorted(set(args.extras))))
    todo = needed_change(os.path.lexists(folder), state, found is not None, wanted)
    if todo is EnvironmentChange.NOTHING:
        return 0
    if todo is EnvironmentChange.REFUSE:
        print(f"{caller}: {folder} {EnvironmentChange.REFUSE.value}", file=sys.stderr)
        return 2
    if todo is EnvironmentChange.INSTALL:
        version = found or version
        extras = {*wanted.extras, *(state.extras if state else ())}
        wanted = wanted._replace(version=version, extras=tuple(sorted(extras)))
    what = "making" if todo is EnvironmentChange.REBUILD else "updating"
    note = f"{what} {folder} with Python {version} (some minutes the first time)"
    print(f"{caller}: {note}", file=sys.stderr, flush=True)
    building = wanted._replace(status="building")
    if todo is EnvironmentChange.REBUILD:
        if folder.is_symlink() or folder.is_file():
            folder.unlink()
        elif folder.exists():
            shutil.rmtree(folder)
        folder.mkdir()
        write_state(folder, building)
        venv.create(folder, with_pip=True, symlinks=True)
    elif state is not None:
        write_state(folder, building)
    if install(folder, wanted, lock):
        message = f"installing into {folder} failed; the whole output is in {folder / LOG_FILE}"
        print(f"{caller}: {message}", file=sys.stderr)
        return 2
    write_state(folder, wanted)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Creates or updates the environment; returns the exit status (2 if this failed)."""
    parser = argparse.ArgumentParser(description="Make or repair the checkout's .venv")
    parser.add_argument("--root", type=Path, required=True, help="the checkout")
    parser.add_argument("--key", required=True, help="checksum of the requirements")
    parser.add_argument(
        "--this-python", action="store_true", help="remake an environment of another version"
    )
    parser.add_argument("--caller", default="make_environment", help="name used in messages")
    parser.add_argument("extras", nargs="*", help="extras of pyproject.toml to install")
    args = parser.parse_args(argv)
    waiting = f"{args.caller}: waiting for another start that is making .venv"
    try:
        with locked(args.root / ".venv.lock", waiting) as lock:
            return make(args, lock)
    except KeyboardInterrupt:
        print(f"{args.caller}: interrupted; the next start makes .venv again", file=sys.stderr)
        return 130
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"{args.caller}: could not make {args.root / '.venv'}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
