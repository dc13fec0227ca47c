"""Counters of the kernel, in files of both kinds of control groups."""

from __future__ import annotations

import pytest

from cnnbench.processes.kernel import oom_kills


@pytest.fixture
def root(tmp_path):
    def root(files):
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return tmp_path

    return root


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({}, 0),
        ({"proc/vmstat": "oom_kill 7\noom_kill_x 9\n"}, 7),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/memory.events": "oom 5\noom_kill 3\n",
                "proc/vmstat": "oom_kill 7\n",
            },
            3,
        ),
        # In a container: the path is the host's, the mount point our group.
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/memory.events": "oom_kill 2\n"}, 2),
        (
            {
                "proc/self/cgroup": "5:cpu:/x\n4:memory:/y\n0::/\n",
                "sys/fs/cgroup/memory/y/memory.oom_control": "under_oom 0\noom_kill 4\n",
            },
            4,
        ),
        ({"proc/self/cgroup": "0::/a\n", "proc/vmstat": "no such line\n"}, 0),
    ],
)
def test_counts(root, files, count):
    assert oom_kills(root(files)) == count
