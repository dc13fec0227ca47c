"""Facts about machine and software, for the record of a run.

A fact that cannot be read is absent, never empty, and reading never raises. TensorFlow is not
loaded; where a run has loaded it, its facts are included.
"""

from __future__ import annotations

from collections.abc import Mapping

from cnnbench.machine import cpu, gpu, libraries, software
from cnnbench.machine.host import Fact, FactGroup, Host, gather

SECTIONS: tuple[tuple[str, tuple[FactGroup, ...]], ...] = (
    ("Machine", cpu.GROUPS),
    ("GPUs", (*gpu.GROUPS, libraries.loaded)),
    ("Software", software.GROUPS),
    ("Environment variables", (software.speed_variables,)),
)
"""Titles of sections, each with its groups of facts."""


def collect(host: Host | None = None) -> dict[str, Fact]:
    """All facts that can be read, by name."""
    sections = collect_by_section(host)
    return {name: fact for facts in sections.values() for name, fact in facts.items()}


def collect_by_section(host: Host | None = None) -> dict[str, dict[str, Fact]]:
    """All facts by the titles of `SECTIONS`, without empty sections."""
    host = Host() if host is None else host
    gathered = ((title, gather(groups, host)) for title, groups in SECTIONS)
    return {title: facts for title, facts in gathered if facts}


def with_loaded_libraries(facts: Mapping[str, Fact]) -> dict[str, Fact]:
    """The facts, with the GPU libraries that this process has loaded since they were collected."""
    return {**facts, **gather((libraries.loaded,), Host())}
