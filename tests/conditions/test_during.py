"""Each check after the timed loop."""

from __future__ import annotations

import os

import pytest

from cnnbench.conditions import during
from cnnbench.conditions.condition import RunFlags, Situation
from cnnbench.conditions.gpus import GpuView
from cnnbench.conditions.sample import Interval
from cnnbench.environment.nvidia import GpuState


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
    assert [text for check in during.CHECKS for text in found(check, **quiet)] == []


@pytest.mark.parametrize(
    ("check", "interval", "text"),
    [
        (
            during.load,
            {"other_cpus": 2.5},
            "in the timed loop other processes kept 2.5 of 8 CPUs busy",
        ),
        (
            during.steal,
            {"steal_fraction": 0.07},
            "in the timed loop the hypervisor withheld 7% of the CPU time",
        ),
        (
            during.quota,
            {"quota_seconds": 1.24},
            "in the timed loop of 10.0 s control groups stopped threads for 1.2 s",
        ),
        (
            during.thermal,
            {"thermal_events": 3},
            "in the timed loop CPUs slowed down 3 times for heat",
        ),
        (during.memory, {"swapped_pages": 99}, "in the timed loop 99 pages were swapped"),
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
    (condition,) = during.quota(situation)
    assert condition.advice == "use --num_intra_threads=2, or raise the quota"
    (condition,) = during.memory(situation)
    assert condition.advice.endswith("lower --batch_size, now 64")


def gpu(processes=None, reasons=(), thermal=None):
    return GpuState(0, "GPU-a", 1000, reasons, processes, thermal)


def test_processes_that_came_during_the_run():
    me = {os.getpid(): "python"}
    old = {42: "python"}
    assert found(during.gpu_processes, gpus=[gpu({**me, **old})], before=[gpu(old)]) == []
    assert found(during.gpu_processes, gpus=[gpu({**me, 43: "x"})], before=[gpu(old)]) == [
        "during the run there came 43 (x) on GPU 0"
    ]


def test_in_a_container_one_new_process_is_ours():
    assert found(during.gpu_processes, gpus=[gpu({77: "python"})], before=[gpu({})]) == []
    texts = found(during.gpu_processes, gpus=[gpu({77: "a", 78: "b"})], before=[gpu({})])
    assert texts == ["during the run there came 77 (a), 78 (b) on GPU 0"]


def test_processes_are_not_guessed_where_the_gpu_does_not_tell():
    assert found(during.gpu_processes, gpus=[gpu(None)], before=[gpu(None)]) == []


def test_heat_by_counter_and_by_reason():
    texts = found(during.gpu_throttle, gpus=[gpu(thermal=4.5)], before=[gpu(thermal=2.0)])
    assert texts == ["clocks were held down on GPU 0 (heat, 2.5 s)"]
    texts = found(during.gpu_throttle, gpus=[gpu(reasons=("power_brake", "power_cap"))])
    assert texts == ["clocks were held down on GPU 0 (power_brake)"]
    quiet = gpu(thermal=2.0, reasons=("power_cap",))
    assert found(during.gpu_throttle, gpus=[quiet], before=[gpu(thermal=2.0)]) == []
