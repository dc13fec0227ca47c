"""Sources of facts: file system, environment variables, loaded modules."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

Fact: TypeAlias = str | int | float | bool | list[str]
Facts: TypeAlias = Mapping[str, Fact | None]


@dataclass(frozen=True)
class Host:
    """Sources of facts; tests replace `root`, the folder that contains proc and sys."""

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    modules: Mapping[str, Any] = field(default_factory=lambda: sys.modules)

    def text(self, path: str) -> str | None:
        """Content of a file below the root, stripped; None if unreadable."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        """The integer in a file; None if there is none."""
        text = self.text(path)
        return int(text) if text is not None and text.lstrip("-").isdigit() else None


FactGroup: TypeAlias = Callable[[Host], Facts]


def gather(groups: Iterable[FactGroup], host: Host) -> dict[str, Fact]:
    """Facts of all groups by name, as far as readable, without empty ones."""
    found: dict[str, Fact] = {}
    for group in groups:
        try:
            facts = group(host)
        except Exception:  # a missing fact must not end a run
            continue
        found.update({k: v for k, v in facts.items() if v is not None and v not in ("", [])})
    return found


def pid_namespace(host: Host) -> str | None:
    """Identifier of the namespace of this process's PIDs; None if unreadable.

    A PID names the same process in two processes with the same identifier. Other machines, and
    containers with PIDs of their own, have other ones.
    """
    boot = host.text("proc/sys/kernel/random/boot_id")
    try:
        namespace = os.readlink(host.root / "proc/self/ns/pid")
    except OSError:
        return None
    return f"{boot} {namespace}" if boot else None
