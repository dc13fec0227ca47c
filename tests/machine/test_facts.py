"""The registry of facts: never an exception, never an empty value, quick, no TensorFlow."""

from __future__ import annotations

import json
import subprocess
import sys

import cnnbench
from cnnbench.machine.facts import collect
from cnnbench.machine.host import gather


def test_facts_of_this_machine_are_plain_and_never_empty():
    facts = collect()
    for name in ("hostname", "platform", "python_version", "tensorflow_version", "logical_cpus"):
        assert name in facts
    assert facts["cnnbench_version"] == cnnbench.__version__
    assert facts["logical_cpus"] >= 1
    json.dumps(facts, allow_nan=False)
    for name, value in facts.items():
        assert type(value) in (str, int, float, bool, list), name
        assert value not in ("", []), name
        if isinstance(value, list):
            assert all(isinstance(item, str) and item for item in value), name


def test_machine_that_tells_nothing_raises_nothing(host):
    facts = collect(host)
    assert "cgroup_cpu_limit" not in facts
    assert "gpu_names" not in facts
    assert not any(name.startswith("env_") for name in facts)


def test_files_full_of_nonsense_raise_nothing(host):
    for path in ("proc/cpuinfo", "proc/meminfo", "proc/self/cgroup", "sys/fs/cgroup/cpu.max"):
        file = host.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"\xff:\x00::\n:\n\n 0 0\nmax max")
    assert "hostname" in collect(host)


def test_group_that_fails_costs_only_its_own_facts(host):
    def broken(host):
        raise RuntimeError("no")

    def half(host):
        return {"a": 1, "b": None, "c": "", "d": [], "e": False, "f": 0}

    assert gather((broken, half), host) == {"a": 1, "e": False, "f": 0}


def test_collecting_does_not_load_tensorflow():
    program = (
        "import sys; from cnnbench.machine.facts import collect; facts = collect(); "
        "print('tensorflow' in sys.modules, 'tensorflow_version' in facts)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False True\n", done.stderr
