"""Each check after the timed loop."""

from __future__ import annotations

import os

import pytest

from cnnbench.machine import run_checks
from cnnbench.machine.condition import RunFlags, Situation
from cnnbench.machine.gpu_readings import GpuView
from cnnbench.machine.nvidia import GpuState
from cnnbench.machine.sampling import Interval


def found(check, facts=None, seconds=10.0, gpus=(), before=(), flags=None, **interval):
    mine = tuple(range(len(gpus)))
    situation = Situation(
        facts={"logical_cpus": 8, "usable_cpus": 8, **(facts or {})},
        interval=Interval(seconds=seconds, **interval),
        flags=flags or RunFlags(on_gpu=bool(gpus), batch_size=32),
        gpus=GpuView(tuple(gpus), mine),
        gpus_before=GpuView(tuple(before), mine),
    )
    return [condition.text for condition in check(situation)]


def test_quiet_loop():
    quiet = {
        "other_cpus": 0.1,
        "steal_fraction": 0.0,
        "thermal_events": 0,
        "quota_seconds": 0.0,
        "swapped_pages": 0,
    }
    assert [text for check in run_checks.CHECKS for text in found(check, **quiet)] == []


@pytest.mark.parametrize(
    ("check", "interval", "text"),
    [
        (
            run_checks.load,
            {"other_cpus": 2.5},
            "in the timed loop other processes kept 2.5 of 8 CPUs busy",
        ),
        (
            run_checks.steal,
            {"steal_fraction": 0.07},
            "in the timed loop the hypervisor withheld 7% of the CPU time",
        ),
        (
            run_checks.quota,
            {"quota_seconds": 1.24},
            "in the timed loop of 10.0 s control groups stopped threads for 1.2 s",
        ),
        (
            run_checks.thermal,
            {"thermal_events": 3},
            "in the timed loop CPUs slowed down 3 times for heat",
        ),
        (run_checks.memory, {"swapped_pages": 99}, "in the timed loop 99 pages were swapped"),
    ],
)
def test_each(check, interval, text):
    assert found(check, **interval) == [text]


def test_advice_depends_on_the_run():
    situation = Situation(
        facts={"cgroup_cpu_limit": 2.5},
        interval=Interval(seconds=1.0, quota_seconds=0.5, swapped_pages=1),
        flags=RunFlags(batch_size=64),
    )
    (condition,) = run_checks.quota(situation)
    assert condition.advice == "use --num_intra_threads=2, or raise the quota"
    (condition,) = run_checks.memory(situation)
    assert condition.advice.endswith("lower --batch_size, now 64")


def gpu(processes=None, reasons=(), thermal=None):
    return GpuState(0, "GPU-a", 1000, reasons, processes, thermal)


def test_processes_that_came_during_the_run():
    me = {os.getpid(): "python"}
    old = {42: "python"}
    assert found(run_checks.gpu_processes, gpus=[gpu({**me, **old})], before=[gpu(old)]) == []
    assert found(run_checks.gpu_processes, gpus=[gpu({**me, 43: "x"})], before=[gpu(old)]) == [
        "during the run there came 43 (x) on GPU 0"
    ]


def test_in_a_container_one_new_process_is_ours():
    assert found(run_checks.gpu_processes, gpus=[gpu({77: "python"})], before=[gpu({})]) == []
    texts = found(run_checks.gpu_processes, gpus=[gpu({77: "a", 78: "b"})], before=[gpu({})])
    assert texts == ["during the run there came 77 (a), 78 (b) on GPU 0"]


def test_processes_are_not_guessed_where_the_gpu_does_not_tell():
    assert found(run_checks.gpu_processes, gpus=[gpu(None)], before=[gpu(None)]) == []


def test_heat_by_counter_and_by_reason():
    texts = found(run_checks.gpu_throttle, gpus=[gpu(thermal=4.5)], before=[gpu(thermal=2.0)])
    assert texts == ["clocks were held down on GPU 0 (heat, 2.5 s)"]
    texts = found(run_checks.gpu_throttle, gpus=[gpu(reasons=("power_brake", "power_cap"))])
    assert texts == ["clocks were held down on GPU 0 (power_brake)"]
    quiet = gpu(thermal=2.0, reasons=("power_cap",))
    assert found(run_checks.gpu_throttle, gpus=[quiet], before=[gpu(thermal=2.0)]) == []
