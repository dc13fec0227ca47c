"""Waits for what child processes do."""

from __future__ import annotations

import time

PATIENCE = 20.0  # seconds; what is waited for takes a fraction of one


def gone(pid):
    """Whether a process is dead, if need be after a moment."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.02)
    return False


def wait_for(path):
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if path.exists() and path.read_text():
            return path.read_text()
        time.sleep(0.02)
    raise AssertionError(f"{path} did not come")
