"""Estimates of memory and duration, and what becomes of a run by them.

Tests cnnbench/run/driver/estimates.py.
"""

import dataclasses

import pytest

from cnnbench.errors import FlagError
from cnnbench.flags import Params
from cnnbench.machine.cpu import MemoryCapacity
from cnnbench.plan import WorkKind, make_plan
from cnnbench.run.driver import benchmark_cnn, estimates
from cnnbench.run.driver.estimates import (
    PROCESS_BYTES,
    MemoryEstimate,
    batch_size_limits,
    estimate_job_memory,
    estimate_memory,
    estimate_run_computation,
)

GIB = 2**30
SHARED = {"model": "alexnet", "device": "cpu", "batch_size": 8}


def estimated(**flags):
    return estimate_memory(make_plan(Params(**{**SHARED, **flags})), "cpu")


def test_what_a_run_keeps_beside_its_activations():
    def total(**flags):
        return estimated(**flags).total

    weights = sum(one.bytes for one in make_plan(Params(model="alexnet")).network.spec.variables)
    assert total(optimizer="momentum") - total() == weights
    assert total(optimizer="adam") - total() == 2 * weights
    # Beside its activations, a second tower has gradients, or a copy of everything too.
    second = total(num_gpus=2) - total()
    copied = total(num_gpus=2, variable_update="replicated") - total()
    assert copied - second == 2 * weights
    assert second > weights
    assert total(forward_only=True) < total() - 2 * weights
    assert estimate_job_memory(make_plan(Params(**SHARED))) == total()


@pytest.mark.parametrize(
    ("flags", "serving", "copies"),
    [
        # On the ps task variables and sums of gradients; between workers joined gradients.
        ({"variable_update": "parameter_server", "ps_hosts": "a:3"}, 1, 2),
        ({"variable_update": "collective_all_reduce"}, 0, 2 * 2),
        (
            {
                "variable_update": "distributed_all_reduce",
                "all_reduce_spec": "xring",
                "controller_host": "a:3",
            },
            1,
            0,
        ),
    ],
)
def test_all_processes_of_a_job_count(flags, serving, copies):
    job = Params(**SHARED, **flags, worker_hosts="a:1,a:2", job_name="worker")
    plan = make_plan(job)
    weights = sum(one.bytes for one in plan.network.spec.variables)
    besides = estimate_job_memory(plan) - 2 * estimate_memory(plan, "cpu").total
    assert besides == serving * PROCESS_BYTES + copies * weights


def test_a_batch_counts_once_per_device():
    flags = {"model": "resnet20", "data_name": "cifar10", "batch_size": 64}
    found = estimated(**flags, num_gpus=2)
    assert found.batch == 64
    assert found.per_image == 2 * estimated(**flags).per_image
    assert found.total == found.fixed + 64 * found.per_image
    assert found.largest_batch(found.total) == 64
    assert found.largest_batch(found.fixed - 1) == 0


@pytest.mark.parametrize(
    ("there", "warns", "refuse"),
    [
        (MemoryCapacity(4 * GIB, 7 * GIB), True, False),
        (MemoryCapacity(8 * GIB, 7 * GIB), True, True),
        (MemoryCapacity(64 * GIB, 7 * GIB), True, True),
        (MemoryCapacity(64 * GIB, 60 * GIB), False, True),
    ],
)
def test_warned_or_quiet(there, warns, refuse):
    needed = MemoryEstimate(fixed=GIB, per_image=GIB // 8, batch=64)  # 9 GiB
    warning = estimates.check_memory_estimate(
        needed, there, make_plan(Params(model="trivial")), refuse=refuse
    )
    assert (warning is not None) == warns
    assert warning is None or "9 GiB of memory with --num_gpus=1, but 7 GiB is avail" in warning


def test_variables_alone_ask_for_fewer_devices():
    needed = MemoryEstimate(fixed=40 * GIB, per_image=1, batch=1)
    plan = make_plan(Params(model="trivial", num_gpus=8))
    with pytest.raises(FlagError, match=r"--num_gpus=8: .* there is 4 GiB; lower --num_gpus"):
        estimates.check_memory_estimate(needed, MemoryCapacity(4 * GIB, 3 * GIB), plan)


def test_a_run_is_refused_before_tensorflow_and_the_search_knows_where(made_up_machine):
    kilobytes = f"MemTotal: {4 << 20} kB\nMemAvailable: {3 << 20} kB\n"
    (made_up_machine / "proc/meminfo").write_text(kilobytes)
    flags = {"model": "resnet20", "data_name": "cifar10", "device": "cpu"}
    found = batch_size_limits(make_plan(Params(**flags)))
    assert found is not None
    fitting, refused = found
    assert fitting < refused
    benchmark_cnn.BenchmarkCNN(Params(**flags, batch_size=refused - 1))
    with pytest.raises(
        FlagError, match=rf"={refused}: takes about 6 GiB .* there is 4 GiB; a batch"
    ):
        benchmark_cnn.BenchmarkCNN(Params(**flags, batch_size=refused))
    assert batch_size_limits(make_plan(Params(model="trivial", device="gpu"))) is None


def planned(**flags):
    return make_plan(Params(**{"device": "cpu", "model": "lenet", "num_batches": 30, **flags}))


def work(**flags):
    return estimate_run_computation(planned(**flags))


def test_steps_images_devices_and_evaluations_are_work():
    one = work(num_warmup_batches=10)
    assert (one.kind, one.dtype, one.steps) == ("cpu", "float32", 40)
    # Devices on the CPU share it.
    for twice in ({"num_warmup_batches": 50}, {"batch_size": 64}, {"num_gpus": 2}):
        assert work(**twice).flops == pytest.approx(2 * one.flops)
    assert work(forward_only=True).flops < one.flops / 2
    assert estimate_run_computation(dataclasses.replace(planned(), work=WorkKind.INPUT)).flops == 0
    evaluated = work(eval_during_training_every_n_steps=10, num_eval_batches=5)
    assert evaluated.steps == one.steps + 2 * 5
    assert evaluated.flops > one.flops


def test_seconds_follow_from_the_speed_of_the_device(limits):
    assert 1e8 < estimates.measure_cpu_flops() < 1e14
    assert estimates.measure_cpu_flops() == estimates.measure_cpu_flops()  # measured once
    limits(estimates, measure_cpu_flops=lambda: 1e11)
    assert 7 < work().estimate_seconds({}) < 10
    # 40 steps of 8 images of 25 GFLOP at half of 100 GFLOP/s.
    assert 100 < work(model="resnet50", batch_size=8).estimate_seconds({}) < 250
    on_gpu = work(device="gpu", model="resnet50", batch_size=64)
    assert on_gpu.estimate_seconds({"gpu_names": ["NVIDIA H200"]}) < 30
    assert on_gpu.estimate_seconds({"gpu_names": ["Unheard-of"]}) is None
    assert on_gpu.estimate_seconds({}) is None
