"""CPU time of other processes of this machine."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cnnbench.machine.host import Host
from cnnbench.machine.processes import cpu_seconds_of, pid_namespace
from cnnbench.machine.sampling import take

BUSY = """
import sys, time
while time.process_time() < 0.5: pass
print("done", flush=True)
sys.stdin.read()
"""

CHILD = "from cnnbench.machine.processes import *; print(pid_namespace(Host()))"


def test_cpu_time_of_another_process():
    with subprocess.Popen(
        [sys.executable, "-S", "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"done\n"
        spent = cpu_seconds_of(Host(), process.pid)
        alone, together = take(Host()), take(Host(), peers=[process.pid])
        process.communicate()
    assert 0.45 < spent < 5
    assert together.own_seconds - alone.own_seconds > 0.45
    assert cpu_seconds_of(Host(), process.pid) is None
    assert take(Host(), peers=[process.pid]).own_seconds is None


@pytest.mark.parametrize("text", ["", "7 (a) S", "7 (a) S " + "x " * 50, "nonsense"])
def test_nonsense_is_unknown(machine, text):
    machine.put("proc/7/stat", text)
    assert cpu_seconds_of(machine.host, 7) is None


def test_processes_that_share_their_pids_say_so(machine):
    other = subprocess.check_output([sys.executable, "-c", CHILD], text=True)
    assert other.strip() == pid_namespace(Host())
    assert pid_namespace(machine.host) is None
    machine.put("proc/sys/kernel/random/boot_id", "0000-1111")
    assert pid_namespace(machine.host) is None
    (machine.root / "proc/self/ns").mkdir(parents=True)
    (machine.root / "proc/self/ns/pid").symlink_to("pid:[42]")
    assert pid_namespace(machine.host) == "0000-1111 pid:[42]"
