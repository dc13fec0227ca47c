"""Each check before a run and after its timed loop, and advice that fits the flags."""

from __future__ import annotations

import os

import pytest

from cnnbench.errors import FlagError
from cnnbench.flags import parse_args
from cnnbench.machine import checks
from cnnbench.machine.checks import CONDITIONS, Condition, RunFlags, Situation, parse_quiet
from cnnbench.machine.gpu import GpuState, GpuView
from cnnbench.machine.sampling import Interval

FACTS = {"logical_cpus": 8, "usable_cpus": 8}


def found(check, facts=None, interval=None, gpus=(), mine=(), **flags):
    situation = Situation(
        facts={**FACTS, **(facts or {})},
        interval=Interval(seconds=5.0, **(interval or {})),
        flags=RunFlags(**flags),
        gpus=GpuView(tuple(gpus), tuple(mine)),
    )
    return list(check(situation))


def only(conditions) -> Condition:
    (condition,) = conditions
    return condition


def test_a_quiet_machine_has_nothing_to_say():
    quiet = {"other_cpus": 0.05, "steal_fraction": 0.0, "load_average": 0.1}
    assert [c for check in checks.BEFORE for c in found(check, interval=quiet)] == []


def test_a_machine_that_tells_nothing_has_nothing_to_say():
    for check in checks.BEFORE:
        assert list(check(Situation(facts={}, interval=Interval(seconds=0.0)))) == []


def test_load_names_its_figures_and_leaves_the_others_their_cpus():
    condition = only(found(checks.load, interval={"other_cpus": 1.3, "load_average": 2.4}))
    assert condition.id == "load"
    assert condition.text == "other processes keep 1.3 of 8 CPUs busy (load average 2.4)"
    assert "--num_intra_threads=6" in condition.advice
    assert "cnnbench ab" in condition.advice
    assert str(condition).endswith("(--quiet_conditions=load silences this)")


@pytest.mark.parametrize(
    "flags",
    [{"intra_threads_given": True, "intra_threads": 4}, {"on_gpu": True}],
    ids=["threads chosen", "GPU"],
)
def test_load_does_not_advise_threads_where_that_does_not_help(flags):
    condition = only(found(checks.load, interval={"other_cpus": 2.0}, **flags))
    assert "num_intra_threads" not in condition.advice


def test_load_leaves_no_advice_on_threads_when_all_cpus_are_taken():
    condition = only(found(checks.load, interval={"other_cpus": 7.9}))
    assert "num_intra_threads" not in condition.advice


@pytest.mark.parametrize(("others", "warns"), [(0.39, False), (0.4, True)])
def test_load_counts_from_a_twentieth_of_the_cpus(others, warns):
    assert bool(found(checks.load, interval={"other_cpus": others})) is warns


def test_the_load_of_the_run_before_is_not_held_against_this_one():
    assert found(checks.load, interval={"other_cpus": 0.0, "load_average": 8.0}) == []


def test_load_average_where_cpu_time_cannot_be_told_apart():
    condition = only(found(checks.load, interval={"load_average": 4.5}))
    assert condition.text == "the load average is 4.5 on 8 CPUs"
    assert found(checks.load, interval={"load_average": 3.5}) == []


@pytest.mark.parametrize(("share", "warns"), [(0.019, False), (0.02, True)])
def test_steal(share, warns):
    conditions = found(checks.steal, interval={"steal_fraction": share})
    assert bool(conditions) is warns
    if warns:
        assert conditions[0].text.startswith("the hypervisor withholds 2% of the CPU time")


def test_threads_only_where_they_were_chosen():
    condition = only(found(checks.threads, intra_threads=16, intra_threads_given=True))
    assert condition.text == "--num_intra_threads=16 is more than the 8 CPUs this process may use"
    assert condition.advice == "use --num_intra_threads=8 or less"
    assert found(checks.threads, intra_threads=8, intra_threads_given=True) == []
    assert found(checks.threads, intra_threads=0) == []


def test_quota_below_the_threads():
    condition = only(found(checks.quota, {"cgroup_cpu_limit": 1.5}))
    assert condition.text == (
        "a control group allows 1.5 CPUs, and TensorFlow's own threads keep 8 busy"
    )
    assert condition.advice == "use --num_intra_threads=1, or raise the quota"
    condition = only(found(checks.quota, {"cgroup_cpu_limit": 2.5}, intra_threads=4))
    assert "--num_intra_threads=4 threads keep 4 busy" in condition.text
    assert "--num_intra_threads=2" in condition.advice


def test_quota_that_suffices():
    assert found(checks.quota, {"cgroup_cpu_limit": 8.0}) == []
    assert found(checks.quota, {"cgroup_cpu_limit": 2.0}, intra_threads=2) == []
    assert found(checks.quota, {"cgroup_cpu_limit": 2.0}, on_gpu=True) == []
    assert found(checks.quota, {"cgroup_cpu_limit": 4.0, "usable_cpus": 4}) == []


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"cpu_governor": "powersave"}, "the frequency governor is powersave"),
        (
            {"cpu_governor": "performance,powersave", "cpu_driver": "intel_pstate"},
            "CPUs have different frequency governors (performance, powersave)",
        ),
        ({"cpu_governor": "powersave", "cpu_driver": "intel_pstate"}, None),
        ({"cpu_governor": "performance"}, None),
        ({"cpu_governor": "schedutil"}, None),
    ],
)
def test_governor(facts, text):
    conditions = found(checks.governor, facts)
    assert [c.text for c in conditions] == ([] if text is None else [text])


def test_memory():
    facts = {"memory_bytes": 1 << 34, "memory_available_bytes": 1 << 29}
    assert only(found(checks.memory, facts)).text == "512 of 16384 MiB of memory are left"
    assert found(checks.memory, {**facts, "memory_available_bytes": 1 << 33}) == []


def test_numa_only_where_the_run_is_not_bound():
    assert "numactl" in only(found(checks.numa, {"numa_nodes": 2})).advice
    assert found(checks.numa, {"numa_nodes": 2, "cpu_affinity": "0-3"}) == []
    assert found(checks.numa, {"numa_nodes": 2}, on_gpu=True) == []
    assert found(checks.numa, {"numa_nodes": 1}) == []


def test_battery():
    assert only(found(checks.battery, {"on_battery": True})).advice == "plug it in"


def gpu(index, processes=None, reasons=()):
    return GpuState(index, f"GPU-{index}", 1000, reasons, processes or {})


def test_gpu_processes_are_named_and_free_gpus_offered():
    gpus = [gpu(0, {42: "python", 7: "Xorg"}), gpu(1), gpu(2, {9: "x"}), gpu(3)]
    condition = only(found(checks.gpu_processes, gpus=gpus, mine=(0,), on_gpu=True))
    assert condition.text == "GPU 0 also runs 7 (Xorg), 42 (python)"
    assert condition.advice == "end them, or use CUDA_VISIBLE_DEVICES=1"
    flags = {"on_gpu": True, "num_devices": 3, "gpu_indices": "0,1,2"}
    condition = only(found(checks.gpu_processes, gpus=gpus, mine=(0, 1), **flags))
    assert condition.advice == "end them, or wait"
    flags = {"on_gpu": True, "num_devices": 2, "gpu_indices": "0,1"}
    condition = only(found(checks.gpu_processes, gpus=gpus, mine=(0, 1), **flags))
    assert condition.advice.endswith("CUDA_VISIBLE_DEVICES=1,3 without --gpu_indices")


def test_gpus_that_the_run_does_not_use_do_not_matter():
    gpus = [gpu(0), gpu(1, {42: "python"}, ("thermal_hardware",))]
    assert found(checks.gpu_processes, gpus=gpus, mine=(0,), on_gpu=True) == []
    assert found(checks.gpu_throttle, gpus=gpus, mine=(0,), on_gpu=True) == []
    assert found(checks.gpu_processes, gpus=gpus, mine=(1,), on_gpu=False) == []


def test_gpu_throttle_is_heat_and_not_a_power_cap():
    hot = gpu(0, reasons=("power_cap", "thermal_software"))
    condition = only(found(checks.gpu_throttle, gpus=[hot], mine=(0,), on_gpu=True))
    assert condition.text == "clocks are held down on GPU 0 (thermal_software)"
    capped = gpu(0, reasons=("power_cap",))
    assert found(checks.gpu_throttle, gpus=[capped], mine=(0,), on_gpu=True) == []


def after(check, facts=None, seconds=10.0, gpus=(), before=(), flags=None, **interval):
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
    assert [text for check in checks.AFTER for text in after(check, **quiet)] == []


@pytest.mark.parametrize(
    ("check", "interval", "text"),
    [
        (
            checks.load_in_loop,
            {"other_cpus": 2.5},
            "in the timed loop other processes kept 2.5 of 8 CPUs busy",
        ),
        (
            checks.steal_in_loop,
            {"steal_fraction": 0.07},
            "in the timed loop the hypervisor withheld 7% of the CPU time",
        ),
        (
            checks.quota_in_loop,
            {"quota_seconds": 1.24},
            "in the timed loop of 10.0 s control groups stopped threads for 1.2 s",
        ),
        (
            checks.thermal,
            {"thermal_events": 3},
            "in the timed loop CPUs slowed down 3 times for heat",
        ),
        (checks.memory_in_loop, {"swapped_pages": 99}, "in the timed loop 99 pages were swapped"),
    ],
)
def test_each_check_of_the_loop(check, interval, text):
    assert after(check, **interval) == [text]


def test_advice_depends_on_the_run():
    situation = Situation(
        facts={"cgroup_cpu_limit": 2.5},
        interval=Interval(seconds=1.0, quota_seconds=0.5, swapped_pages=1),
        flags=RunFlags(batch_size=64),
    )
    (condition,) = checks.quota_in_loop(situation)
    assert condition.advice == "use --num_intra_threads=2, or raise the quota"
    (condition,) = checks.memory_in_loop(situation)
    assert condition.advice.endswith("lower --batch_size, now 64")


def gpu_0(processes=None, reasons=(), thermal=None):
    return GpuState(0, "GPU-a", 1000, reasons, processes, thermal)


def test_processes_that_came_during_the_run():
    me = {os.getpid(): "python"}
    old = {42: "python"}
    assert (
        after(checks.gpu_processes_in_loop, gpus=[gpu_0({**me, **old})], before=[gpu_0(old)]) == []
    )
    assert after(
        checks.gpu_processes_in_loop, gpus=[gpu_0({**me, 43: "x"})], before=[gpu_0(old)]
    ) == ["during the run there came 43 (x) on GPU 0"]


def test_in_a_container_one_new_process_is_ours():
    assert (
        after(checks.gpu_processes_in_loop, gpus=[gpu_0({77: "python"})], before=[gpu_0({})]) == []
    )
    texts = after(
        checks.gpu_processes_in_loop, gpus=[gpu_0({77: "a", 78: "b"})], before=[gpu_0({})]
    )
    assert texts == ["during the run there came 77 (a), 78 (b) on GPU 0"]


def test_processes_are_not_guessed_where_the_gpu_does_not_tell():
    assert after(checks.gpu_processes_in_loop, gpus=[gpu_0(None)], before=[gpu_0(None)]) == []


def test_heat_by_counter_and_by_reason():
    texts = after(
        checks.gpu_throttle_in_loop, gpus=[gpu_0(thermal=4.5)], before=[gpu_0(thermal=2.0)]
    )
    assert texts == ["clocks were held down on GPU 0 (heat, 2.5 s)"]
    texts = after(checks.gpu_throttle_in_loop, gpus=[gpu_0(reasons=("power_brake", "power_cap"))])
    assert texts == ["clocks were held down on GPU 0 (power_brake)"]
    quiet = gpu_0(thermal=2.0, reasons=("power_cap",))
    assert after(checks.gpu_throttle_in_loop, gpus=[quiet], before=[gpu_0(thermal=2.0)]) == []


def test_names_and_all():
    assert parse_quiet("") == frozenset()
    assert parse_quiet("load, steal") == {"load", "steal"}
    assert parse_quiet("load,all") == set(CONDITIONS)


@pytest.mark.parametrize(
    ("text", "hint"),
    [("lod", "'lod' is no condition; did you mean load?"), ("xyz", "there are load, steal, ")],
)
def test_unknown_name(text, hint):
    with pytest.raises(FlagError, match=f"^--quiet_conditions={text}: .*{hint[:20]}") as caught:
        parse_quiet(text)
    assert hint in str(caught.value)


def test_a_command_line_with_an_unknown_name_is_refused():
    with pytest.raises(FlagError, match="quiet_conditions"):
        parse_args(["--quiet_conditions=load,heat"])
    assert parse_args(["--quiet_conditions=load"]).params.quiet_conditions == "load"


def test_every_id_has_a_check_and_every_check_an_id():
    names = {check.__name__ for check in (*checks.BEFORE, *checks.AFTER)}
    assert {name.removesuffix("_in_loop") for name in names} == set(CONDITIONS)
