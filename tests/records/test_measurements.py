"""What a run collects becomes a record, however the run ends."""

from __future__ import annotations

import math
import os
import sys
import tracemalloc
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from cnnbench.base.steady_state import find_steady_state
from cnnbench.errors import BenchmarkError
from cnnbench.records.measurements import Measurements, ResourceUseSample
from cnnbench.records.run import (
    Batch,
    Cluster,
    Evaluation,
    LossScaling,
    ResourceUse,
    RunRecord,
    StartupSeconds,
    TaskAddress,
    TurnTaking,
    WorkerShare,
    find_steady_state_of_run,
)


def start(**config):
    return Measurements(command=["cnnbench", "--x=1"], config=config, explicit_flags=["x"])


def test_skipped_steps_are_numbered_within_warm_up_and_loop():
    run = start()
    run.warmup.add_execution(0.5, 9.0, skipped=[True])
    run.warmup.add_execution(0.5, 9.0)
    run.timed.add_execution(0.25, 8.0)
    run.timed.add_execution(0.25, 8.0, skipped=[True])
    assert run.make_record().loss_scaling is None
    run.update_record(loss_scaling=LossScaling(start=128.0, end=32.0))
    scaling = run.make_record().loss_scaling
    assert (scaling.start, scaling.end) == (128.0, 32.0)
    assert scaling.warmup_skipped_steps == (1,)
    assert scaling.skipped_steps == (2,)


def test_flags_whose_values_change_are_listed():
    run = start(x=None, y=1, z=2)
    run.update_config(x=3, y=1, new=4)
    run.update_config(z=5.0, x=3)
    record = run.make_record()
    assert record.config == {"x": 3, "y": 1, "z": 5.0, "new": 4}
    assert record.resolved == ("x", "z")


def test_time_slices_are_numbered_and_their_waits_added():
    run = start()
    run.begin_time_slice(0.5)
    turns = run.parts.turns
    assert turns == TurnTaking(
        turn_seconds=0.5, starts=(1,), waited_seconds=0.0, waited_cpu_seconds=0.0
    )
    for wait, cpu in ((1.5, 0.25), (2.0, 0.5)):
        run.timed.add_execution(0.25, 8.0)
        run.timed.add_execution(0.25, 8.0)
        run.begin_time_slice(0.75, wait, cpu)
    assert run.parts.turns == TurnTaking(
        turn_seconds=0.75, starts=(1, 3, 5), waited_seconds=3.5, waited_cpu_seconds=0.75
    )


def test_everything_measured_reaches_the_record():
    run = start(x=1, names=("a", "b"))
    run.update_record(batch=Batch(per_device=8, global_=16))
    run.update_record("startup_seconds", import_=1.0, build=2.0)
    run.update_record("startup_seconds", first_step=3.0)
    run.warmup.add_execution(0.5, 9.0)
    run.timed.add_execution(0.25, 8.0, cpu_seconds=0.5)
    run.timed.add_execution(0.25, math.nan, cpu_seconds=0.25)
    evaluation = Evaluation(global_step=3, top_1=0.0, top_5=1.0, examples=4, images_per_sec=5.0)
    run.add_evaluation(evaluation)
    run.update_record(
        "measured", loop_seconds=0.64, loop_user_seconds=0.75, loop_system_seconds=0.21
    )
    run.update_record(environment={"hostname": "h"})
    record = run.make_record()
    assert (record.status, record.error) == ("ok", None)
    assert record.command == ("cnnbench", "--x=1")
    assert record.config == {"x": 1, "names": ["a", "b"]}
    assert (record.explicit_flags, record.resolved) == (("x",), ())
    assert (record.warmup_step_seconds, record.warmup_losses) == ((0.5,), (9.0,))
    assert record.step_seconds == (0.25, 0.25)
    assert record.losses == pytest.approx((8.0, math.nan), nan_ok=True)
    assert record.evaluations == (evaluation,)
    assert record.startup_seconds == StartupSeconds(import_=1.0, build=2.0, first_step=3.0)
    assert record.environment == {"hostname": "h"}
    assert record.summary().images_per_sec == pytest.approx(64.0)
    assert record.step_cpu_seconds == (0.5, 0.25)
    assert record.summary().busy_cpus == pytest.approx(0.96 / 0.64)
    # Two steps of 16 images in 0.64 s.
    assert record.summary().total_images_per_sec == pytest.approx(50.0)


def test_a_value_that_the_record_does_not_have_is_refused():
    run = start()
    with pytest.raises(TypeError, match="speed"):
        run.update_record(speed=1.0)
    with pytest.raises(TypeError, match="speed"):
        run.update_record("measured", speed=1.0)
    with pytest.raises(ValueError, match=r"measured\.loop_seconds: -1"):
        run.update_record("measured", loop_seconds=-1.0)
    with pytest.raises(ValueError, match="warmup_status: 'soon'"):
        run.update_record(warmup_status="soon")


def test_skipped_steps_of_an_incomplete_execution_are_not_in_the_record():
    run = start(steps_per_execution=2)
    run.update_record(loss_scaling=LossScaling(start=128.0, end=32.0))
    run.timed.add_execution(0.5, 3.0, 2.0, skipped=[True, False])
    run.timed.add_execution(0.5, 1.0, skipped=[True])  # interrupted before the second loss
    record = run.make_record("interrupted")
    assert record.losses == (3.0, 2.0)
    assert record.loss_scaling.skipped_steps == (1,)


@pytest.mark.parametrize("updates", [[], [("worker:1", 0), ("worker:0", 2), ("worker:1", 1)]])
def test_workers_get_their_shares_of_the_timed_steps(updates):
    run = start()
    tasks = tuple(TaskAddress(task=f"worker:{n}", address=f"h:{n}") for n in range(2))
    shares = tuple(WorkerShare(task=task.task, steps=0, images=0) for task in tasks)
    run.update_record(
        batch=Batch(per_device=4, global_=8), cluster=Cluster(tasks=tasks, workers=shares)
    )
    run.update_record("cluster", messages_per_step=6, bytes_per_step=80)
    for _ in range(3):
        run.timed.add_execution(0.5)
    run.updates += updates
    run.lost_workers.append("worker:1")
    cluster = run.make_record().cluster
    assert (cluster.tasks, cluster.messages_per_step, cluster.bytes_per_step) == (tasks, 6, 80)
    # Without asynchronous updates, all workers take part in every step and share its images.
    steps, images = ((1, 2), (8, 16)) if updates else ((3, 3), (12, 12))
    assert tuple(worker.steps for worker in cluster.workers) == steps
    assert tuple(worker.images for worker in cluster.workers) == images
    assert tuple(worker.lost for worker in cluster.workers) == (False, True)
    assert cluster.staleness == tuple(staleness for _, staleness in updates)


def test_images_counted_elsewhere_win_over_steps_times_batch():
    run = start()
    run.update_record(batch=Batch(per_device=8, global_=8))
    run.timed.add_execution(1.0)
    run.update_record("measured", loop_seconds=2.0, loop_images=100)
    assert len(run.timed.seconds) == 1
    assert run.make_record().losses == ()
    assert run.make_record().summary().total_images_per_sec == 50.0


def test_failed_run_keeps_what_it_measured_and_says_why():
    run = start()
    run.update_record(batch=Batch(per_device=2, global_=2))
    run.timed.add_execution(0.5, 1.0)
    record = run.make_record("failed", BenchmarkError("disk full"))
    assert (record.error.type, record.error.message) == ("BenchmarkError", "disk full")
    assert record.step_seconds == (0.5,)
    assert RunRecord.from_json(record.to_json()) == record


def test_interruption_between_time_and_loss_drops_that_step():
    class CtrlC:
        def __float__(self):
            raise KeyboardInterrupt

    run = start()
    run.timed.add_execution(0.5, 1.0, cpu_seconds=0.25)
    with pytest.raises(KeyboardInterrupt):
        run.timed.add_execution(0.5, CtrlC(), cpu_seconds=0.75)
    record = run.make_record("interrupted")
    assert (record.step_seconds, record.losses) == ((0.5,), (1.0,))
    assert record.step_cpu_seconds == (0.25,)


def test_the_longest_execution_is_not_the_first_one():
    run = start(steps_per_execution=2)
    assert run.longest_execution() == 0.0
    for seconds, longest in ((5.0, 10.0), (0.75, 1.5), (0.5, 1.5)):
        run.timed.add_execution(seconds)
        assert run.longest_execution() == longest


def test_run_ids_are_unique_and_the_start_is_utc():
    records = [start().make_record() for _ in range(100)]
    assert len({r.run_id for r in records}) == 100
    assert datetime.fromisoformat(records[0].started_at).utcoffset() == timedelta(0)


def test_config_values_without_json_form_are_refused_before_the_run():
    with pytest.raises(ValueError, match="no JSON form"):
        start(x=object())


def test_ten_thousand_steps_take_kilobytes():
    run = start()
    tracemalloc.start()
    for _ in range(10_000):
        run.timed.add_execution(0.5, 1.0, cpu_seconds=0.25)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # 24 bytes per step and the arrays' spare room.
    assert size < 375_000


def stepped(warmup, timed):
    run = start()
    for seconds in warmup:
        run.warmup.add_execution(seconds)
    for seconds in timed:
        run.timed.add_execution(seconds)
    return run.make_record()


def test_warm_up_and_timed_steps_are_one_series():
    times = (0.03,) * 25 + (0.02,) * 85
    found = find_steady_state_of_run(stepped(times[:10], times[10:]))
    assert found == replace(find_steady_state(times), warmup_steps=10)
    assert found.unsteady_timed_steps == 15


@pytest.mark.parametrize(
    ("warmup", "timed", "unsteady"),
    [
        ([0.5, 0.3, 0.02], [0.02] * 40, 0),  # steady before the first timed step
        ([], [], None),
        ([], [0.02] * 45 + [0.03] * 5, None),
    ],
)
def test_steps_before_the_steady_state(warmup, timed, unsteady):
    assert find_steady_state_of_run(stepped(warmup, timed)).unsteady_timed_steps == unsteady


@pytest.mark.skipif(sys.platform != "linux", reason="shared memory needs Linux")
def test_what_a_forked_process_measured_is_known_here():
    run = start()
    run.start_sharing_with_forks()
    child = os.fork()
    if not child:
        run.update_record(warmup_status="fixed")
        run.warmup.add_execution(0.5, 9.0)
        run.publish_to_parent()
        run.timed.add_execution(0.25, 8.0, cpu_seconds=0.5)
        run.update_record("measured", loop_seconds=7.0)  # after it was published
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    run.copy_published_values()
    record = run.make_record("failed", ValueError("aborted"))
    assert record.warmup_step_seconds == (0.5,)
    steps = record.step_seconds, record.losses, record.step_cpu_seconds
    assert steps == ((0.25,), (8.0,), (0.5,))
    assert record.warmup_status == "fixed"
    assert record.measured.loop_seconds is None


def sampled(rows):
    """A record of the samples (seconds, MB, CPU seconds, MB on the GPU, loops)."""
    run = start()
    for seconds, memory, cpu, device, loops in rows:
        for number in ResourceUseSample(
            seconds, 1e6 * memory, 1e6 * device, cpu, seconds / 4096, loops
        ):
            run.use_samples.append(number)
    return run


def test_samples_of_memory_and_cpus_reach_the_record():
    run = sampled([(0, 5, 3, 0, 0), (1, 9, 5, 2, 0), (1.5, 8, 5.25, 3, 1), (2, 7, 6, 1, 2)])
    run.use_samples.append(3.0)  # the process was killed within a sample
    use = run.make_record().resources
    assert use == ResourceUse(
        seconds=(1, 1.5, 2),
        memory_bytes=(9e6, 8e6, 7e6),
        device_memory_bytes=(2e6, 3e6, 1e6),
        busy_cpus=(2, 0.5, 1.5),
        loop_start=1.5,
        loop_end=2,
        sampler_cpu_seconds=2 / 4096,
    )
    assert RunRecord.from_json(run.make_record().to_json()).resources == use


@pytest.mark.parametrize("rows", [[], [(0, 5, 3, 0, 0), (0.5, 5, 3, 0, 1), (0.9, 5, 3, 0, 2)]])
def test_a_run_shorter_than_a_second_has_no_samples(rows):
    record = sampled(rows).make_record()
    assert record.resources is None
    assert "resources" not in record.to_dict()


def test_samples_of_a_long_run_are_thinned():
    # 1,500 s with half a CPU, and one second with much memory.
    use = (
        sampled([(n, 500 if n == 700 else 5, n / 2, 0, 0) for n in range(1501)])
        .make_record()
        .resources
    )
    assert len(use.seconds) == 500
    assert use.seconds[:2] == (3, 6)
    assert use.seconds[-1] == 1500
    assert [at for at, size in zip(use.seconds, use.memory_bytes, strict=True) if size > 5e6] == [
        702
    ]
    assert set(use.busy_cpus) == {0.5}
    assert use.device_memory_bytes == ()
    assert use.loop_start is None
    assert (
        len(sampled([(n, 5, n, 0, 0) for n in range(601)]).make_record().resources.seconds) == 600
    )


@pytest.mark.parametrize(
    ("key", "values", "message"),
    [
        ("seconds", (), "must contain a sample"),
        ("seconds", (2, 1), "must increase"),
        ("busy_cpus", (1,), "must contain a value for each of 2 samples"),
        ("device_memory_bytes", (1,), "must contain a value for each of 2 samples"),
        ("memory_bytes", (1, math.nan), "nan is out of range"),
        ("busy_cpus", (-1, 1), "-1 is out of range"),
    ],
)
def test_samples_that_cannot_be_are_refused(key, values, message):
    given = {"seconds": (1, 2), "memory_bytes": (1, 2), "busy_cpus": (0, 1)}
    with pytest.raises(ValueError, match=f"^resources.{key}.*{message}"):
        ResourceUse(**{**given, key: values}, sampler_cpu_seconds=0)
