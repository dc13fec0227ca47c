"""Several steps in one call of the host, against single steps.

Tests cnnbench/run/step/train_step.py.
"""

from dataclasses import replace

import numpy as np
import pytest
import short_runs
from covering import slow_if
from data_sets import write_random_cifar10
from short_runs import NETWORKS

from cnnbench import BenchmarkCNN, Params
from cnnbench.plan import make_plan, parse_run
from cnnbench.records.measurements import Measurements
from cnnbench.variable_mgr.modes import BUILT_IN, Processes

pytestmark = pytest.mark.usefixtures("quick_start")

TOGETHER = 3
OF_ONE_PROCESS = {one.name: one for one in BUILT_IN if one.processes is not Processes.COORDINATOR}


def trained(steps_per_execution, **flags):
    """The record and the weights after two warm-up executions and two timed ones."""
    own = {"model": "poison", "plugin": NETWORKS, "device": "cpu", "batch_size": 2}
    own |= {"num_batches": 2 * TOGETHER, "num_warmup_batches": 2 * TOGETHER}
    own |= {"init_learning_rate": 0.0625, "learning_rate_schedule": "exponential"}
    own |= {"learning_rate_decay_factor": 0.5, "num_epochs_per_decay": 0.0001}
    given = Params.from_dict({**own, **flags, "steps_per_execution": steps_per_execution})
    driver = BenchmarkCNN(given)
    kept = []
    build = driver.build
    driver.build = lambda: kept.append(build()) or kept[-1]
    record = driver.run()
    state = {**kept[0].manager.savable_variables(), **kept[0].slots}
    return record, {name: one.primary.numpy() for name, one in state.items()}


def assert_equal_training(**flags):
    (one, weights), (several, found) = trained(1, **flags), trained(TOGETHER, **flags)
    assert len(several.losses) == len(one.losses) == 2 * TOGETHER
    assert len(several.step_seconds) == len(several.warmup_step_seconds) == 2
    expected = (*one.warmup_losses, *one.losses)
    assert len({*expected}) > TOGETHER
    np.testing.assert_allclose((*several.warmup_losses, *several.losses), expected, rtol=1e-6)
    assert weights.keys() == found.keys()
    for name, value in weights.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-7, err_msg=name)


def devices_of(mode):
    """One, two and four devices are distributed over the modes."""
    return (2, 4, 1)[[*OF_ONE_PROCESS].index(mode) % 3]


# The kinds of steps below have the manager of replicated and that of strategies.
@pytest.mark.parametrize(
    "mode",
    slow_if(
        lambda mode: mode != "parameter_server",
        ["parameter_server", "distributed_replicated", "independent"],
    ),
)
def test_steps_of_an_execution_train_as_single_steps(mode):
    flags = {"variable_update": mode, "num_gpus": devices_of(mode), "optimizer": "momentum"}
    assert_equal_training(**OF_ONE_PROCESS[mode].needs, **flags)


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        {"bn_stats": "sync", "variable_consistency": "relaxed"},
        {"staged_vars": True, "variable_update": "parameter_server"},
        {"precision": "fp16", "fp16_enable_auto_loss_scale": True, "fp16_loss_scale": 64.0},
    ],
    ids=lambda flags: next(iter(flags)),
)
def test_every_kind_of_step_can_be_repeated(flags):
    given = {"num_gpus": 2, "variable_update": "replicated", "print_training_accuracy": True}
    assert_equal_training(**given | flags)


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        {"gradient_accumulation_steps": 2, "num_gpus": 1},
        {"variable_update": "mirrored_strategy", "input_distribution": "strategy"},
    ],
    ids=lambda flags: next(iter(flags)),
)
def test_every_step_has_its_own_images(flags, tmp_path):
    write_random_cifar10(tmp_path, train=40, test=20)
    given = {"data_dir": str(tmp_path), "data_name": "cifar10", "model": "trivial", "num_gpus": 2}
    given["num_epochs_per_decay"] = 0.2  # a period of 2 steps
    given |= {"mixup_alpha": 0.4, "cutmix_alpha": 1.0}
    if "input_distribution" in flags:
        given["cross_device_ops"] = "reduction_to_one_device"
    assert_equal_training(**given | flags)


def test_pauses_wait_for_the_end_of_an_execution(tmp_path):
    checkpoints = tmp_path / "checkpoints"
    ran = short_runs.run(
        num_batches=8,
        num_warmup_batches=3,
        steps_per_execution=4,
        train_dir=str(checkpoints),
        save_model_steps=5,
        eval_during_training_every_n_steps=5,
        num_eval_batches=1,
        display_every=3,
    )
    rows = [line.split("\t")[0] for line in ran.lines if "images/sec:" in line]
    assert [row for row in rows if row.isdigit()] == ["4", "8"]
    record = ran.record
    assert [one.global_step for one in record.evaluations] == [8, 12]
    assert {path.stem for path in checkpoints.glob("*.index")} == {"model.ckpt-8", "model.ckpt-12"}
    assert len(record.warmup_step_seconds) == 1
    assert len(record.step_seconds) == len(record.step_cpu_seconds) == 2
    assert (record.steps, record.warmup_steps, len(record.losses)) == (8, 4, 8)
    assert record.measured.loop_images == 8 * record.batch.global_
    assert sum(record.step_seconds) * 4 <= record.measured.loop_seconds
    summary = record.summary()
    assert summary.step_p50_seconds is None
    assert summary.images_per_sec == pytest.approx(
        record.batch.global_ / np.mean(record.step_seconds)
    )


def test_lengths_are_rounded_up_to_whole_executions():
    given = {"model": "lenet", "steps_per_execution": 7}
    length = make_plan(Params(**given)).length
    assert (length.batches, length.warm_up.least, length.warm_up.most) == (105, 14, 14)
    length = make_plan(Params(**given, num_batches=14, num_warmup_batches=7)).length
    assert (length.batches, length.warm_up.least) == (14, 7)
    auto = make_plan(Params(**given, warmup="auto")).length.warm_up
    assert auto.most % 7 == 0
    assert all(step % 7 == 0 for step in auto.steadiness_check_steps)
    plan = parse_run(["--num_batches=8", "--num_warmup_batches=3", "--steps_per_execution=4"])
    (notice,) = plan.notices
    assert notice == (
        "--num_warmup_batches is rounded up to 4, the next multiple of --steps_per_execution=4"
    )


def test_interrupted_executions_have_no_part_in_a_record():
    measurements = Measurements(command=["cnnbench"], config={"steps_per_execution": 2})
    measurements.timed.add_execution(0.5, 3.0, 2.0, skipped=[False, True])
    measurements.timed.add_execution(0.25, 1.0)  # a Ctrl-C came before the second loss
    record = measurements.make_record("interrupted")
    assert (record.step_seconds, record.losses) == ((0.5,), (3.0, 2.0))
    assert [*measurements.timed.skipped] == [2]
    assert measurements.longest_execution() == 0.5
    with pytest.raises(ValueError, match="losses: 3 values for 2 steps"):
        replace(record, losses=(1.0, 2.0, 3.0))
