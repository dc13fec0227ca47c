"""``cnnbench env`` on a machine made up by the test."""

import json
from types import SimpleNamespace

import pytest

from cnnbench.cli.commands import env
from cnnbench.machine import facts as environment
from cnnbench.machine import watch
from cnnbench.machine.counters import MachineCounters

SECTIONS = {
    "Machine": {"logical_cpus": 2, "usable_cpus": 2, "memory_bytes": 3 << 30, "cpu_smt": False},
    "GPUs": {"gpu_names": ["a", "b"]},
    "Software": {"python_version": "3.11.9"},
}


@pytest.fixture
def facts(monkeypatch):
    monkeypatch.setattr(environment, "collect_facts_by_section", lambda host=None: SECTIONS)
    monkeypatch.setattr(env, "convolution_kernels", lambda host: "onednn-avx512")


def test_facts_are_grouped_and_readable(call, facts):
    assert call("env").out.splitlines() == [
        "Machine",
        "  cpu_smt       no",
        "  logical_cpus  2",
        "  memory_bytes  3 GiB",
        "  usable_cpus   2",
        "",
        "GPUs",
        "  gpu_names  a, b",
        "",
        "Software",
        "  python_version  3.11.9",
    ]


def test_json_has_the_names_of_the_record(call, facts, holds):
    document = json.loads(call("env", "--json").out)
    holds("env", document)
    (machine, gpus, software) = SECTIONS.values()
    assert document == {"facts": {**machine, **gpus, **software}}


def test_a_cpu_without_onednns_convolutions_is_told_how_to_measure_them(
    call, facts, holds, monkeypatch
):
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS")
    monkeypatch.setattr(env, "convolution_kernels", lambda host: "eigen-avx2")
    document = json.loads(call("env", "--json").out)
    holds("env", document)
    (advice,) = document["advice"]
    assert "cnnbench ab --b_env=TF_ENABLE_ONEDNN_OPTS=1 -- --model=" in advice
    assert call("env").out.endswith(f"\n\n{advice}\n")
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")  # The user has decided.
    assert "advice" not in json.loads(call("env", "--json").out)


def test_this_machine(call):
    out = call("env").out
    assert out.startswith("Machine\n")
    assert "\nSoftware\n" in out


@pytest.fixture
def conditions(facts, cpus, monkeypatch):
    """Sets what the machine, of two CPUs, does during the second that is watched."""
    cpus({0, 1})
    slept = []
    # Only of this module: waiting for git sleeps, too.
    monkeypatch.setattr(env, "time", SimpleNamespace(sleep=slept.append))

    def script(busy=0.0, steal=0.0, load=0.1):
        samples = [
            MachineCounters(
                at=0.0, busy_seconds=5.0, steal_seconds=0.0, own_seconds=1.0, load_average=load
            ),
            MachineCounters(at=1.0, busy_seconds=5.0 + busy, steal_seconds=steal, own_seconds=1.0),
        ]
        monkeypatch.setattr(watch, "read_counters", lambda *_: samples.pop(0))
        return slept

    return script


@pytest.mark.parametrize(
    ("name", "busy", "flags"),
    [("quiet", 0.0, []), ("silenced", 1.0, ["--quiet_conditions=load"])],
)
def test_check_of_a_quiet_machine(call, conditions, transcript, name, busy, flags):
    slept = conditions(busy)
    transcript(name, call("env", "--check", "--seconds=1.5", *flags).out)
    assert slept == [1.5]


def test_check_of_a_busy_machine_exits_3(call, conditions, transcript):
    conditions(busy=1.0, steal=0.25, load=2.0)
    transcript("busy", call("env", "--check", code=3).out)


def test_check_for_the_flags_of_a_run(call, conditions):
    conditions()
    out = call("env", "--check", "--", "--device=cpu", "--num_intra_threads=9", code=3).out
    assert "--num_intra_threads=2 " in out


def test_check_as_json(call, conditions, holds):
    conditions(busy=1.0, steal=0.25)
    document = json.loads(call("env", "--check", "--json", "--quiet_conditions=steal", code=3).out)
    holds("env", document)
    assert document["facts"]["logical_cpus"] == 2
    assert document["conditions"]["measured"] == {
        "seconds": 1.0,
        "other_cpus": 1.0,
        "steal_fraction": 0.2,
        "load_average": 0.1,
    }
    found = document["conditions"]["found"]
    assert [(one["id"], one["silenced"]) for one in found] == [("load", False), ("steal", True)]
    assert all(one["text"] and one["advice"] for one in found)
