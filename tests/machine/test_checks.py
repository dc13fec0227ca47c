"""Each check before a run and after its timed loop, and advice that fits the flags."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

import pytest
from golden import sentences

from cnnbench.base.document.markdown import replace_marked_table
from cnnbench.cli import documents
from cnnbench.machine import checks
from cnnbench.machine.checks import (
    AFTER,
    BEFORE,
    CONDITIONS,
    WARNINGS,
    ConditionCheckFlags,
    ConditionCheckInput,
    parse_silenced,
)
from cnnbench.machine.gpu import GpuState, GpuStates

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden" / "conditions.txt"

WARNING = re.compile(r"(\.|^print_)warning$")
"""Functions that print a warning; the second argument is its name."""

INTERVAL = ("seconds", "other_cpus", "steal_fraction", "load_average", "thermal_events")
INTERVAL += ("quota_seconds", "swapped_pages")
FLAGS = ConditionCheckFlags._fields


def found(check, gpus=(), mine=None, before=(), **values):
    """What a check finds on 8 CPUs, and advice; values are of the interval, flags or facts."""
    interval = {name: values.pop(name) for name in INTERVAL if name in values}
    flags = {name: values.pop(name) for name in FLAGS if name in values}
    own = tuple(range(len(gpus))) if mine is None else mine
    situation = ConditionCheckInput(
        facts={"logical_cpus": 8, "usable_cpus": 8, **values},
        interval={"seconds": 10.0, **interval},
        flags=ConditionCheckFlags(**{"on_gpu": bool(gpus), **flags}),
        gpus=GpuStates(tuple(gpus), own),
        gpus_before=GpuStates(tuple(before), own),
    )
    return check(situation)


def texts(*arguments, **values):
    finding = found(*arguments, **values)
    return [] if finding is None else [finding[0]]


def advice(*arguments, **values):
    return found(*arguments, **values)[1]


ALL = (BEFORE, AFTER)


@pytest.mark.parametrize("check", [check for checks in ALL for check in checks.values()])
def test_quiet_and_unknown_machines_have_no_conditions(check):
    quiet = {"other_cpus": 0.05, "steal_fraction": 0.0, "load_average": 0.1, "thermal_events": 0}
    assert found(check, **quiet, quota_seconds=0.0, swapped_pages=0) is None
    assert check(ConditionCheckInput(facts={}, interval={"seconds": 0.0})) is None


def memory(total, left):
    return {"memory_bytes": total << 20, "memory_available_bytes": left << 20}


ONE, SIXTEEN = {"logical_cpus": 1, "usable_cpus": 1}, {"logical_cpus": 16}
MIXED = {"cpu_governor": "performance,powersave", "cpu_driver": "intel_pstate"}
GIVEN = {"intra_threads_given": True}
# What a check finds, and what it does not; the sentences are in golden/conditions.txt.
FOUND = {
    checks.load: [
        *({"other_cpus": 1.3, "load_average": 2.4}, {"other_cpus": 0.4}, {"other_cpus": 7.0}),
        *({"other_cpus": 0.1, **ONE}, {"other_cpus": 0.8, **SIXTEEN}, {"load_average": 4.5}),
        {"other_cpus": 0.3, "logical_cpus": None, "usable_cpus": 4},
        {"load_average": 8.1, **SIXTEEN},
        {"load_average": 2.1, "logical_cpus": None, "usable_cpus": 4},
        # Fewer threads are advised only where they help.
        {"other_cpus": 2.0, "intra_threads": 4, **GIVEN},
        *({"other_cpus": 2.0, "on_gpu": True}, {"other_cpus": 7.9}),
    ],
    checks.load_in_loop: [{"other_cpus": 2.5}],
    checks.steal: [{"steal_fraction": 0.02}],
    checks.steal_in_loop: [{"steal_fraction": 0.07}],
    checks.threads: [
        {"intra_threads": 16, **GIVEN},
        *({"intra_threads": count + 1, **GIVEN, "usable_cpus": count} for count in (1, 2)),
    ],
    checks.quota: [
        *({"cgroup_cpu_limit": limit} for limit in (0.5, 1.0, 1.5)),
        *({"cgroup_cpu_limit": 2.5, "intra_threads": count} for count in (4, 16)),
    ],
    checks.quota_in_loop: [
        *({"quota_seconds": 1.24}, {"quota_seconds": 0.11}),
        *({"quota_seconds": 1, "cgroup_cpu_limit": limit} for limit in (0.5, 2.5)),
        {"quota_seconds": 1, "cgroup_cpu_limit": 2, "on_gpu": True},
    ],
    checks.governor: [{"cpu_governor": "powersave"}, MIXED],
    checks.thermal: [{"thermal_events": 3}],
    checks.memory: [memory(100, 4), memory(100, 0), memory(1 << 14, 512)],
    checks.memory_in_loop: [{"swapped_pages": 99}, {"swapped_pages": 1, "batch_size": 64}],
    checks.numa: [{"numa_nodes": 2}],
    checks.battery: [{"on_battery": True}],
}
NOT_FOUND = {
    checks.load: [
        *({"other_cpus": 0.39}, {"other_cpus": 0.09, **ONE}, {"other_cpus": 0.7, **SIXTEEN}),
        # The load average still includes the run before.
        *({"other_cpus": 0.0, "load_average": 8.0}, {"load_average": 8.1, "other_cpus": 0.1}),
        *({"load_average": 4.0}, {"load_average": 8.0, **SIXTEEN}),
    ],
    checks.steal: [{"steal_fraction": 0.019}],
    checks.threads: [{"intra_threads": 8, **GIVEN}, {"intra_threads": 16}],
    checks.quota: [
        {"cgroup_cpu_limit": 8.0},
        *({"cgroup_cpu_limit": 2.0, "intra_threads": 2}, {"cgroup_cpu_limit": 2.0, "on_gpu": True}),
        {"cgroup_cpu_limit": 4.0, "usable_cpus": 4},
    ],
    checks.quota_in_loop: [{"quota_seconds": 0.1}],
    checks.memory: [memory(100, 5), memory(1 << 14, 1 << 13)],
    checks.governor: [
        {"cpu_governor": "powersave", "cpu_driver": "intel_pstate"},
        *({"cpu_governor": "performance"}, {"cpu_governor": "schedutil"}),
    ],
    checks.numa: [
        *({"numa_nodes": 2, "cpu_affinity": "0-3"}, {"numa_nodes": 2, "on_gpu": True}),
        {"numa_nodes": 1},
    ],
}


def test_limits_and_texts():
    told = {}
    for check, cases in FOUND.items():
        for values in cases:
            words = ", ".join(f"{name} {value}" for name, value in values.items())
            told[f"{check.__name__}: {words}"] = "; ".join(found(check, **values))
    sentences(GOLDEN, told, told)
    for check, cases in NOT_FOUND.items():
        assert [values for values in cases if found(check, **values) is not None] == []


def gpu(index=0, processes=None, reasons=(), thermal=None):
    return GpuState(index, f"GPU-{index}", 1000, reasons, processes, thermal)


def test_gpu_processes_are_named_and_free_gpus_offered():
    gpus = [gpu(0, {42: "python", 7: "Xorg"}), gpu(1), gpu(2, {9: "x"}), gpu(3)]
    check = checks.gpu_processes
    assert texts(check, gpus, (0,)) == ["GPU 0 also runs 7 (Xorg), 42 (python)"]
    assert advice(check, gpus, (0,)) == "end them, or use CUDA_VISIBLE_DEVICES=1"
    flags = {"cards": (0, 1, 2), "gpu_indices_given": True}
    assert advice(check, gpus, (0, 1), **flags) == "end them, or wait"
    flags = {"cards": (0, 1), "gpu_indices_given": True}
    assert advice(check, gpus, (0, 1), **flags).endswith("=1,3 without --gpu_indices")


def test_gpus_that_the_run_does_not_use_are_ignored():
    gpus = [gpu(0), gpu(1, {42: "python"}, ("thermal_hardware",))]
    assert found(checks.gpu_processes, gpus, (0,)) is None
    assert found(checks.gpu_throttle, gpus, (0,)) is None


def test_gpu_throttle_is_heat_or_power_supply_and_not_a_power_cap():
    hot, capped = gpu(reasons=("power_cap", "thermal_software")), gpu(reasons=("power_cap",))
    assert texts(checks.gpu_throttle, [hot]) == ["clocks are held down on GPU 0 (thermal_software)"]
    assert found(checks.gpu_throttle, [capped]) is None
    check, quiet = checks.gpu_throttle_in_loop, gpu(thermal=2.0, reasons=("power_cap",))
    after = texts(check, [gpu(thermal=4.5)], before=[gpu(thermal=2.0)])
    assert after == ["clocks were held down on GPU 0 (heat, 2.5 s)"]
    after = texts(check, [gpu(reasons=("power_brake", "power_cap"))])
    assert after == ["clocks were held down on GPU 0 (power_brake)"]
    assert found(check, [quiet], before=[quiet]) is None


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ({42: "python"}, {42: "python", os.getpid(): "python"}, None),
        ({42: "a"}, {42: "a", os.getpid(): "b", 43: "x"}, "43 (x) on GPU 0"),
        # In a container the driver knows this process by another number.
        ({}, {77: "python"}, None),
        ({}, {77: "a", 78: "b"}, "77 (a), 78 (b) on GPU 0"),
        (None, None, None),
    ],
)
def test_processes_that_started_during_the_run(before, after, text):
    gpus, earlier = [gpu(processes=after)], [gpu(processes=before)]
    expected = [] if text is None else [f"processes started during the run: {text}"]
    assert texts(checks.gpu_processes_in_loop, gpus, before=earlier) == expected


def test_quiet_conditions():
    assert parse_silenced("") == frozenset()
    assert parse_silenced("load, steal") == {"load", "steal"}
    assert parse_silenced("steady") == {"steady"}
    assert parse_silenced("load,all") == set(CONDITIONS)
    assert parse_silenced("steady,all") == {*CONDITIONS, "steady"}


def test_the_names_of_warnings_are_those_declared():
    sources = [path for path in (ROOT / "cnnbench").rglob("*.py") if path.name != "checks.py"]
    texts = [path.read_text(encoding="utf-8") for path in sources]
    of_calls = {
        ast.unparse(node.args[1]).strip("'")
        for text in texts
        if "warning(" in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and WARNING.search(ast.unparse(node.func))
    }
    others = set(WARNINGS) - set(CONDITIONS)
    assert [name for name in others if not any(f'"{name}"' in text for text in texts)] == []
    # The others are of checks, of `notices`, and in the function itself.
    assert of_calls - {"condition.id", "warning", "name"} <= others


def test_the_documented_names_are_current():
    text = (ROOT / "docs" / "conditions.md").read_text(encoding="utf-8")
    made = replace_marked_table(text, "warnings", documents.warning_tables()["warnings"])
    assert made == text, "run: python -m cnnbench.cli.documents docs"
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.M)) == set(WARNINGS)


def test_every_id_has_a_check_and_every_check_an_id():
    assert {name for checks in ALL for name in checks} == set(CONDITIONS)
