"""``cnnbench env`` on a machine made up by the test."""

import contextlib
import json
import sys

import pytest

from cnnbench.cli import main
from cnnbench.cli.commands import env
from cnnbench.machine import facts as environment
from cnnbench.machine import watch
from cnnbench.machine.sampling import Counters

SECTIONS = {
    "Machine": {"logical_cpus": 2, "usable_cpus": 2, "memory_bytes": 3 << 30, "cpu_smt": False},
    "GPUs": {"gpu_names": ["a", "b"]},
    "Software": {"python_version": "3.11.9"},
}


@pytest.fixture
def facts(monkeypatch):
    made = {title: dict(section) for title, section in SECTIONS.items()}
    monkeypatch.setattr(environment, "collect_by_section", lambda host=None: made)
    return made


def test_facts_are_grouped_and_readable(facts, capsys):
    assert main(["env"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "Machine",
        "  cpu_smt         no",
        "  logical_cpus    2",
        "  memory_bytes    3.0 GiB",
        "  usable_cpus     2",
        "",
        "GPUs",
        "  gpu_names       a, b",
        "",
        "Software",
        "  python_version  3.11.9",
    ]


def test_json_has_the_names_of_the_record(facts, capsys, holds):
    assert main(["env", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    holds("env", document)
    assert document == {
        "facts": {
            "logical_cpus": 2,
            "usable_cpus": 2,
            "memory_bytes": 3 << 30,
            "cpu_smt": False,
            "gpu_names": ["a", "b"],
            "python_version": "3.11.9",
        }
    }


def test_this_machine(capsys):
    assert main(["env"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Machine\n")
    assert "\nSoftware\n" in out


@pytest.fixture
def conditions(facts, monkeypatch):
    """Sets what the machine does during the second that is watched."""
    slept = []
    monkeypatch.setattr(env.time, "sleep", slept.append)

    def script(busy=0.0, steal=0.0, load=0.1):
        samples = [
            Counters(
                at=0.0, busy_seconds=5.0, steal_seconds=0.0, own_seconds=1.0, load_average=load
            ),
            Counters(at=1.0, busy_seconds=5.0 + busy, steal_seconds=steal, own_seconds=1.0),
        ]
        monkeypatch.setattr(watch, "take", lambda *_: samples.pop(0))
        return slept

    return script


def test_check_of_a_quiet_machine(conditions, capsys):
    slept = conditions()
    assert main(["env", "--check", "--seconds=1.5"]) == 0
    assert capsys.readouterr().out == "nothing found\n"
    assert slept == [1.5]


def test_check_of_a_busy_machine_exits_3(conditions, capsys):
    conditions(busy=1.0, steal=0.25, load=2.0)
    assert main(["env", "--check"]) == 3
    assert capsys.readouterr().out.splitlines() == [
        "load: other processes keep 1.0 of 2 CPUs busy (load average 2.0); stop them, leave them "
        "their CPUs with --num_intra_threads=1, or compare runs with cnnbench ab, which "
        "interleaves the two sides",
        "steal: the hypervisor withholds 20% of the CPU time this machine asks for; use a "
        "dedicated machine, or compare runs with cnnbench ab, which interleaves the two sides",
        "2 condition(s) that would distort a measurement",
    ]


@pytest.mark.parametrize(("busy", "codes"), [(1.0, (3, 3)), (0.0, (4, 0))])
def test_what_is_found_does_not_depend_on_where_its_text_goes(conditions, monkeypatch, busy, codes):
    for name, status in zip(("/dev/full", None), codes, strict=True):
        conditions(busy=busy)
        with monkeypatch.context() as patch, contextlib.ExitStack() as stack:
            stream = None if name is None else stack.enter_context(open(name, "w"))
            patch.setattr(sys, "stdout", stream)
            assert main(["env", "--check"]) == status


def test_silenced_conditions_do_not_count(conditions, capsys):
    conditions(busy=1.0)
    assert main(["env", "--check", "--quiet_conditions=load"]) == 0
    assert capsys.readouterr().out == "nothing found (1 silenced)\n"


def test_check_for_the_flags_of_a_run(conditions, capsys):
    conditions()
    assert main(["env", "--check", "--", "--device=cpu", "--num_intra_threads=9"]) == 3
    assert "use --num_intra_threads=2 or less" in capsys.readouterr().out


def test_check_as_json(conditions, capsys, holds):
    conditions(busy=1.0, steal=0.25)
    assert main(["env", "--check", "--json", "--quiet_conditions=steal"]) == 3
    document = json.loads(capsys.readouterr().out)
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
