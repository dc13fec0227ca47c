"""How much memory there is, read from files."""

from __future__ import annotations

import pytest

from cnnbench.machine.memory import Memory, main_memory

GIB = 2**30
MEMINFO = f"MemTotal: {16 * 2**20} kB\nMemAvailable: {12 * 2**20} kB\nSwapTotal: {2**20} kB"


def test_of_the_machine(machine) -> None:
    machine.put("proc/meminfo", MEMINFO)
    assert main_memory(machine.host) == Memory(total=17 * GIB, available=12 * GIB)


@pytest.mark.parametrize(
    ("group", "folder", "names"),
    [
        ("0::/job", "sys/fs/cgroup/job", ("memory.max", "memory.current", "inactive_file")),
        (
            "3:memory:/job",
            "sys/fs/cgroup/memory/job",
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ),
    ],
    ids=["version 2", "version 1"],
)
def test_of_a_control_group(machine, group, folder, names) -> None:
    machine.put("proc/meminfo", MEMINFO)
    machine.put("proc/self/cgroup", group)
    limit, used, file_pages = names
    machine.put(f"{folder}/{limit}", 4 * GIB)
    machine.put(f"{folder}/{used}", 3 * GIB)
    machine.put(f"{folder}/memory.stat", f"anon 5\n{file_pages} {GIB}")
    assert main_memory(machine.host) == Memory(total=5 * GIB, available=2 * GIB)


def test_a_group_without_a_limit(machine) -> None:
    machine.put("proc/meminfo", MEMINFO)
    machine.put("proc/self/cgroup", "0::/job")
    machine.put("sys/fs/cgroup/job/memory.max", "max")
    assert main_memory(machine.host) == Memory(total=17 * GIB, available=12 * GIB)


def test_unknown_where_there_are_no_files(machine) -> None:
    assert main_memory(machine.host) is None
