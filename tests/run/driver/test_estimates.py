"""Estimates of memory and duration, and what becomes of a run by them.

Tests cnnbench/run/driver/estimates.py.
"""

import dataclasses

import pytest

from cnnbench.errors import FlagError
from cnnbench.flags import Params
from cnnbench.machine.cpu import MemoryCapacity
from cnnbench.models.declaration import bytes_per_image
from cnnbench.plan import WorkKind, make_plan
from cnnbench.run.driver import benchmark_cnn, estimates
from cnnbench.run.driver.estimates import (
    PROCESS_BYTES,
    MemoryEstimate,
    RunComputation,
    estimate_memory,
    estimate_run_computation,
)

GIB = 2**30
SHARED = {"model": "alexnet", "device": "cpu", "batch_size": 8}


def test_a_run_is_refused_before_tensorflow(made_up_machine):
    kilobytes = f"MemTotal: {4 << 20} kB\nMemAvailable: {3 << 20} kB\n"
    (made_up_machine / "proc/meminfo").write_text(kilobytes)
    flags = {"model": "resnet20", "data_name": "cifar10", "device": "cpu"}
    needed = estimate_memory(make_plan(Params(**flags)), "cpu")
    refused = needed.largest_batch(round(1.5 * 4 * GIB)) + 1
    benchmark_cnn.BenchmarkCNN(Params(**flags, batch_size=refused - 1))
    with pytest.raises(
        FlagError, match=rf"={refused}: takes about 6 GiB .* there is 4 GiB; a batch"
    ):
        benchmark_cnn.BenchmarkCNN(Params(**flags, batch_size=refused))


def planned(**flags):
    return make_plan(Params(**{"device": "cpu", "model": "lenet", "num_batches": 30, **flags}))


def work(**flags):
    return estimate_run_computation(planned(**flags))


@pytest.mark.parametrize(
    ("flags", "copies", "examples"),
    [
        # The variables with what the optimizer keeps, and gradients of each tower and their sums.
        ({}, 1 + 1 + 1, 1),
        ({"num_gpus": 2}, 1 + 2 + 1, 2),
        ({"num_gpus": 2, "variable_update": "replicated"}, 2 * (1 + 1 + 1), 2),
        ({"precision": "bf16"}, 1.5 + 1 + 1, 1),
        ({"optimizer": "momentum"}, 2 + 1 + 1, 1),
        ({"optimizer": "adam"}, 3 + 1 + 1, 1),
        ({"ema_decay": 0.9}, 2 + 1 + 1, 1),
        ({"gradient_accumulation_steps": 3}, 1 + 1 + 1 + 1, 3),
        ({"forward_only": True}, 1, 1),
        ({"forward_only": True, "num_gpus": 2, "variable_update": "replicated"}, 2, 2),
    ],
)
def test_memory_is_that_of_copies_and_of_examples(flags, copies, examples):
    plan = make_plan(Params(**{**SHARED, **flags}))
    spec, found = plan.network.spec, estimate_memory(plan, "cpu")
    weights = sum(one.bytes for one in spec.variables)
    assert found.fixed == PROCESS_BYTES + round(copies * weights)
    wide = plan.numerics.activation_bytes
    trains = not flags.get("forward_only")
    activations = bytes_per_image(plan.network.model, spec, training=trains, value_bytes=wide)
    example = 4 * (227 * 227 * 3 + 1)  # and a label
    towers = flags.get("num_gpus", 1)
    assert found.per_image == towers * activations + towers * (examples // towers) * example
    assert found.total == found.fixed + 8 * found.per_image
    evaluation = {"eval_during_training_every_n_steps": 10, "num_eval_batches": 5}
    if trains:  # the larger of the two counts
        small, large = (
            estimate_memory(
                make_plan(Params(**{**SHARED, **flags, **evaluation}, eval_batch_size=size)), "cpu"
            )
            for size in (1, 4096)
        )
        assert small == found
        assert (large.batch, large.fixed) == (4096, found.fixed)
        assert large.per_image < found.per_image
    on_gpu = estimate_memory(plan, "gpu")  # of one of the towers
    assert on_gpu.fixed < found.fixed
    assert on_gpu.per_image == found.per_image // towers


@pytest.mark.parametrize(
    ("total", "available", "needed", "refused", "warned"),
    [
        # Sizes in GiB; refused above one and a half of all memory, warned above nine tenths.
        (4, 10, 6, False, False),
        (4 - 1e-6, 10, 6, True, None),
        (64, 10, 9, False, False),
        (64, 10 - 1e-6, 9, False, True),
    ],
)
def test_limits_of_memory(total, available, needed, refused, warned):
    plan = make_plan(Params(model="trivial", num_gpus=8))
    estimate = MemoryEstimate(fixed=GIB, per_image=(needed - 1) * GIB // 4, batch=4)
    there = MemoryCapacity(round(total * GIB), round(available * GIB))
    if not refused:
        assert (estimates.check_memory_estimate(estimate, there, plan) is not None) == warned
        return
    with pytest.raises(FlagError, match=r"--batch_size=4: .* a batch of 7 "):
        estimates.check_memory_estimate(estimate, there, plan)
    assert estimates.check_memory_estimate(estimate, there, plan, refuse=False) is None
    with pytest.raises(FlagError, match="--num_gpus=8: "):  # nothing but the variables fits
        estimates.check_memory_estimate(estimate._replace(fixed=40 * GIB), there, plan)


@pytest.mark.parametrize("gpus", [1, 2])
def test_memory_that_no_batch_fits(gpus):
    """What is needed and what there is; fewer devices only if there are several."""
    plan = make_plan(Params(model="trivial", num_gpus=gpus))
    estimate = MemoryEstimate(fixed=3 * GIB, per_image=GIB, batch=4)
    with pytest.raises(FlagError) as caught:
        estimates.check_memory_estimate(estimate, MemoryCapacity(2 * GIB, GIB), plan)
    message = str(caught.value)
    assert "a batch of 1 takes 4 GiB, and 1 GiB is available" in message
    assert message.startswith("--batch_size=4: " if gpus == 1 else "--num_gpus=2: ")
    assert message.endswith("; lower --num_gpus") == (gpus > 1)


@pytest.mark.parametrize(
    ("memory", "most"), [(99, 0), (100, 0), (109, 0), (110, 1), (119, 1), (120, 2)]
)
def test_the_largest_batch_that_fits(memory, most):
    assert MemoryEstimate(100, 10, 1).largest_batch(memory) == most


def test_seconds_are_those_of_the_start_of_steps_and_of_arithmetic(limits):
    assert 1e8 < estimates.measure_cpu_flops() < 1e14
    assert estimates.measure_cpu_flops() == estimates.measure_cpu_flops()  # measured once
    limits(estimates, measure_cpu_flops=lambda: 1e11)
    on_cpu = RunComputation("cpu", "float32", 100, 5e12)
    assert on_cpu.estimate_seconds({}) == pytest.approx(7 + 100 * 0.003 + 5e12 / 0.5e11)
    on_gpu = RunComputation("gpu", "float32", 100, 494.5e13)
    names = ["NVIDIA H200", "Unheard-of"]  # all are taken to be like the first
    assert on_gpu.estimate_seconds({"gpu_names": names}) == pytest.approx(20.3 + 10 / 0.3)
    for unknown in ({}, {"gpu_names": ["Unheard-of"]}):
        assert on_gpu.estimate_seconds(unknown) is None
    assert on_gpu.estimate_seconds({"gpu_names": []}) is None
    assert on_gpu.estimate_seconds({"gpu_names": "NVIDIA H200"}) is None


def test_the_flops_of_a_run_are_those_of_its_steps():
    length = {"num_warmup_batches": 10, "batch_size": 8}
    spec = planned().network.spec
    training, forward = spec.training_flops_per_image, spec.forward_flops_per_image
    one = work(**length)
    assert (one.kind, one.dtype, one.steps, one.flops) == ("cpu", "float32", 40, 40 * 8 * training)
    assert work(**length, num_gpus=2).flops == 2 * one.flops  # devices on the CPU share it
    assert work(**length, num_gpus=2, device="gpu").flops == one.flops
    reading = dataclasses.replace(planned(**length), work=WorkKind.INPUT)
    assert estimate_run_computation(reading).flops == 0
    assert work(**length, forward_only=True).flops == 40 * 8 * forward
    assert work(**length, gradient_accumulation_steps=3).flops == 40 * 3 * 8 * training
    evaluated = work(
        **length, eval_during_training_every_n_steps=10, num_eval_batches=5, eval_batch_size=4
    )
    assert evaluated.steps == 40 + 2 * 5
    assert evaluated.flops == 40 * 8 * training + 2 * 5 * 4 * forward
