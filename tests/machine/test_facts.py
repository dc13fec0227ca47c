"""Recorded environment variables and versions; libraries of GPUs are in test_libraries.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from cnnbench.machine.cpu import Host
from cnnbench.machine.facts import SECTIONS, collect, collect_facts_by_section, comparable_fact


@pytest.mark.parametrize(
    ("name", "value", "compared"),
    [
        ("hostname", "/a/b", "/a/b"),
        ("env_XLA_FLAGS", "", ""),
        ("env_NCCL_TOPO_FILE", "/a/b", "..."),
        ("env_XLA_FLAGS", "--xla_dump_to=/a/b --x=1", "--xla_dump_to=... --x=1"),
        ("env_XLA_FLAGS", "--a_dir='/a b' --x=1", "--a_dir=... --x=1"),
        ("env_NCCL_DEBUG", "INFO", "INFO"),
    ],
)
def test_paths_in_variables_are_not_compared(name: str, value: str, compared: str) -> None:
    assert comparable_fact(name, value) == compared


def test_all_facts_have_a_section(tmp_path: Path) -> None:
    host = Host(root=tmp_path, environ={"NCCL_DEBUG": "INFO"}, modules={})
    by_section = collect_facts_by_section(host)
    assert {*by_section} <= {title for title, _ in SECTIONS}
    assert by_section["Environment variables"] == {"env_NCCL_DEBUG": "INFO"}
    whole = collect(host)
    assert {name for facts in by_section.values() for name in facts} == {*whole}
    assert "Environment variables" not in collect_facts_by_section(
        Host(root=tmp_path, environ={}, modules={})
    )
