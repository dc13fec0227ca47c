"""A run's look at the machine, from its start to the end of its timed loop."""

from __future__ import annotations

import itertools
import os
import time

import pytest

from cnnbench.machine import watch as watching
from cnnbench.machine.checks import ConditionCheckFlags
from cnnbench.machine.cpu import usable_cpu_numbers
from cnnbench.machine.watch import ConditionMonitor, ProcessUseSampler
from cnnbench.records.measurements import ResourceUseSample

FACTS = {"logical_cpus": 2, "usable_cpus": 2}


def stat(user, system=0.0):
    """A process's file of /proc, whose name has what separates its fields."""
    before = " ".join(map(str, range(4, 14)))
    return f"7 (a) b) S {before} {round(user * 100)} {round(system * 100)} 0 0 20 0 31 0 123"


def observing(machine, **how):
    """A monitor that observes from now on."""
    return ConditionMonitor(machine.host, clock=machine.clock).start(**how)


def test_before_and_during(machine):
    machine.cpu(busy=10.0)
    machine.load(0.5)
    machine.joules(1.0)
    clocks = [
        f"sys/devices/system/cpu/cpu{i}/cpufreq/scaling_cur_freq" for i in usable_cpu_numbers()
    ]
    for path in clocks:
        machine.put(path, 1_200_000)
    watch = observing(machine)
    machine.at(104.0, own=2.0, busy=16.0)  # two of the six seconds are ours
    assert [c.id for c in watch.check_before_run(FACTS, ConditionCheckFlags())] == ["load"]
    with watch:
        for path in clocks:
            machine.put(path, 3_300_000)
        machine.at(114.0, own=20.0, busy=34.0, steal=4.5)
        machine.joules(43.0)
    assert [c.id for c in watch.check_timed_loop()] == ["steal"]
    assert watch.energy["cpu_energy_joules"] == 42.0
    record = watch.observed_conditions()
    assert record.before == {
        "seconds": 4.0,
        "other_cpus": 1.0,
        "steal_fraction": 0.0,
        "load_average": 0.5,
        "cpu_clock_mhz": 1200,
    }
    during = {"other_cpus": 0.0, "steal_fraction": 0.2, "cpu_clock_mhz": 3300}
    assert record.during == {"seconds": 10.0, "load_average": 0.5, **during}
    assert [(note.id, note.when) for note in record.notes] == [
        ("load", "before"),
        ("steal", "during"),
    ]


def test_other_processes_of_the_job_are_no_disturbance(machine):
    machine.cpu(busy=10.0)
    machine.load(0.5)
    watch = observing(machine)
    # Waiting for the others, while somebody computes.
    machine.at(104.0, own=0.0, busy=14.0)
    machine.put("proc/7/stat", stat(user=9.0))
    watch.set_peers([7])
    machine.at(108.0, own=1.0, busy=20.0)  # two of the six seconds are others'
    machine.put("proc/7/stat", stat(user=10.0, system=2.0))
    assert [c.text for c in watch.check_before_run(FACTS, ConditionCheckFlags())] == [
        "other processes keep 0.5 of 2 CPUs busy (load average 0.5)"
    ]
    with watch:
        machine.at(118.0, own=9.0, busy=38.0)
        machine.put("proc/7/stat", stat(user=19.0, system=3.0))
    assert watch.check_timed_loop() == ()
    assert watch.observed_conditions().during["other_cpus"] == 0.0


def test_load_beside_a_process_of_the_job_that_has_ended_is_unknown(machine):
    machine.cpu(busy=10.0)
    watch = observing(machine)
    watch.set_peers([7])
    watch.check_before_run(FACTS, ConditionCheckFlags())
    with watch:
        machine.now = 110.0
        machine.cpu(busy=20.0)
    assert watch.check_timed_loop() == ()
    assert "other_cpus" not in watch.observed_conditions().during


def test_a_run_that_fails_early_has_no_conditions(machine):
    watch = observing(machine)
    assert watch.check_timed_loop() == ()
    assert watch.observed_conditions() is None
    watch.check_before_run(FACTS, ConditionCheckFlags())
    record = watch.observed_conditions()
    assert (record.during, record.notes) == ({}, ())


@pytest.fixture
def on_gpus(machine, nvml):
    """on_gpus({PID: NAME}, ...): the processes on each GPU from now on."""
    nvml.old, nvml.reasons = False, 0
    machine.modules["pynvml"] = nvml

    def run(*processes):
        nvml.processes = tuple(map(tuple, processes))
        for pid, name in itertools.chain.from_iterable(them.items() for them in processes):
            machine.put(f"proc/{pid}/comm", name)

    return run


def test_gpus_are_asked_before_and_after(machine, on_gpus):
    machine.environ["CUDA_VISIBLE_DEVICES"] = "1"
    on_gpus({}, {42: "python"})
    watch = observing(machine)
    flags = ConditionCheckFlags(on_gpu=True)
    (condition,) = watch.check_before_run(FACTS, flags)
    assert condition.text == "GPU 1 also runs 42 (python)"
    assert condition.advice == "end them, or use CUDA_VISIBLE_DEVICES=0"
    with watch:
        on_gpus({}, {42: "python", 50: "me", 51: "you"})
    (condition,) = watch.check_timed_loop()
    assert condition.text == "processes started during the run: 50 (me), 51 (you) on GPU 1"
    record = watch.observed_conditions()
    assert record.before["gpu_clocks_mhz"] == [1755]
    assert record.before["gpu_processes"] == ["1: 42 (python)"]


def test_processes_of_the_job_keep_only_gpus_beside_those_of_the_run_busy(machine, on_gpus):
    on_gpus({50: "worker", 60: "game"}, {50: "worker"})
    watch = observing(machine)
    watch.set_peers([50])
    (condition,) = watch.check_before_run(
        FACTS, ConditionCheckFlags(on_gpu=True, gpu_indices_given=True)
    )
    assert condition.text == "GPU 0 also runs 60 (game)"
    assert condition.advice == "end them, or wait"
    with watch:
        machine.now += 10
    assert watch.observed_conditions().during["gpu_processes"] == ["0: 60 (game)"]


def test_processes_that_take_turns_are_not_new_on_the_gpus(machine, on_gpus):
    both = {os.getpid(): "me", 50: "partner"}
    on_gpus({})
    watch = observing(machine, starts_with_others=True)
    watch.check_before_run(FACTS, ConditionCheckFlags(on_gpu=True))
    on_gpus(both)
    with watch:
        machine.now += 10
        on_gpus({**both, 60: "game"})
    (condition,) = watch.check_timed_loop()
    assert condition.text == "processes started during the run: 60 (game) on GPU 0"


def test_what_happens_while_others_have_their_turn_is_not_of_the_run(machine):
    machine.cpu(busy=10.0)
    machine.joules(1.0)
    watch = observing(machine, starts_with_others=True)
    machine.at(104.0, own=2.0, busy=18.0)
    assert watch.check_before_run(FACTS, ConditionCheckFlags()) == ()
    with watch:
        machine.at(106.0, own=5.0, busy=22.0)  # one of four is not ours
        machine.joules(11.0)
        with watch.suspended():
            machine.at(120.0, own=5.5, busy=50.0, steal=8.0)
            machine.joules(91.0)
        machine.at(122.0, own=8.5, busy=54.0, steal=8.0)
        machine.joules(101.0)
    watch.check_timed_loop()
    assert watch.energy["cpu_energy_joules"] == pytest.approx(20.0)
    record = watch.observed_conditions()
    assert record.before == {"seconds": 4.0, "steal_fraction": 0.0}
    during = record.during
    assert (during["seconds"], during["other_cpus"], during["steal_fraction"]) == (4.0, 0.5, 0.0)


def samples(numbers):
    """The samples whose numbers were appended."""
    return [
        ResourceUseSample(*row)
        for row in zip(*[iter(numbers)] * len(ResourceUseSample._fields), strict=True)
    ]


def test_memory_and_cpus_are_sampled_at_both_ends_of_the_loop(machine):
    numbers: list[float] = []
    use = ProcessUseSampler(machine.clock)
    use.close()  # no samples by the thread
    use.start(numbers.append)
    watch = ConditionMonitor(machine.host, clock=machine.clock, use=use).start()
    use.device_memory = lambda: 7
    start = machine.clock()
    watch.check_before_run(FACTS, ConditionCheckFlags())
    machine.at(start + 4.0, own=2.0, busy=16.0)
    with watch:
        machine.at(start + 14.0, own=20.0, busy=34.0)
    found = samples(numbers)
    assert [(one.seconds, one.loops, one.device_memory) for one in found] == [
        (0, 0, 0),
        (4, 1, 7),
        (14, 2, 7),
    ]
    assert all(one.memory > 1e6 for one in found)
    assert 0 < found[0].cpu_seconds <= found[1].cpu_seconds <= found[2].cpu_seconds


def test_the_sampler_goes_on_by_itself_until_it_is_closed(monkeypatch):
    monkeypatch.setattr(watching, "USE_PERIOD", 0.005)
    numbers: list[float] = []
    sampler = ProcessUseSampler()
    sampler.start(numbers.append)
    width = len(ResourceUseSample._fields)
    deadline = time.monotonic() + 10
    while len(numbers) < 5 * width and time.monotonic() < deadline:
        time.sleep(0.005)
    sampler.close()
    sampler._thread.join(10)
    found = samples(numbers)
    assert len(found) >= 5
    assert found == sorted(found)
    assert 0 < found[-1].sampler_seconds < found[-1].cpu_seconds
    time.sleep(0.02)
    assert len(numbers) == width * len(found)


def test_without_proc_there_are_no_samples(monkeypatch):
    def unknown():
        raise FileNotFoundError("/proc/self/statm")

    monkeypatch.setattr(watching, "_resident_bytes", unknown)
    numbers: list[float] = []
    sampler = ProcessUseSampler()
    sampler.start(numbers.append)
    sampler.sample_at_loop_edge()
    sampler.close()
    assert numbers == []
