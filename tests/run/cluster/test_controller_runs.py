"""What one controller trains in two workers is what one process trains with all towers."""

from __future__ import annotations

import json

import numpy as np
import pytest
from data_sets import write_cifar10
from oracle import STEPS, expected_losses, slopes
from short_runs import NETWORKS, RATE
from worker_runs import made_once, outcome, run_under_a_controller

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),  # the first test waits for all runs of both workers
    pytest.mark.usefixtures("quick_start"),
]

ALL = {"num_gpus": 2, "num_warmup_batches": 0, "init_learning_rate": RATE, "weight_decay": 0}
PS = {"variable_update": "parameter_server"}
REDUCED = {"variable_update": "distributed_all_reduce", "all_reduce_spec": "xring"}


def of(model, **flags):
    own = {"model": model, "plugin": NETWORKS}
    return {**ALL, **own, "num_batches": 3, **flags}


ORACLE = of("oracle", num_batches=STEPS, optimizer="momentum", weight_decay=0.0625, **PS)
REDUCED_ORACLE = {
    **{**ORACLE, "variable_update": "distributed_all_reduce"},
    "all_reduce_spec": "pscpu:4:copy/xring",
    "gradient_reduction": "sum",
}
RESUMED_AT = 2
NORMAL = of("normal", eval_during_training_every_n_steps=2, num_eval_batches=1)
SCALED = of("poison", precision="fp16", fp16_enable_auto_loss_scale=True, poisoned=True)
COMPARED = {
    "batch norm of ps tasks": {**NORMAL, **PS, "bn_stats": "mean"},
    "batch norm of workers": {**NORMAL, **REDUCED, "bn_stats": "first"},
    "moments of all": {**NORMAL, **REDUCED, "bn_stats": "sync"},
    "an infinity": {**SCALED, **REDUCED},
}


EVALUATED = {**ALL, **REDUCED, "model": "trivial", "data_name": "cifar10", "batch_size": 2}
EVALUATED |= {"num_batches": 2, "eval_during_training_every_n_steps": 1, "num_eval_epochs": 1}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return made_once(tmp_path_factory, "controller", of_all_runs)


@pytest.fixture(scope="module")
def results(made):
    """See `of_all_runs`."""
    return made[1]


def of_all_runs(folder):
    """What the controller makes of every run; one start of TensorFlow for all."""
    images = np.random.default_rng(5).integers(0, 256, (11, 32, 32, 3), np.uint8)
    for subset in ("train", "validation"):
        write_cifar10(folder / "cifar", images, np.arange(11) % 10, subset=subset)
    saved = {**ORACLE, "train_dir": str(folder / "train")}
    late = {
        "saved": {**saved, "num_batches": RESUMED_AT},
        "resumed": {**saved, "late": True},
        "shadows": {**ORACLE, "variable_update": "distributed_replicated", "late": True},
        "evaluated": {**COMPARED["batch norm of workers"], "late": True},
        "evaluated files": {**EVALUATED, "data_dir": str(folder / "cifar")},
    }
    accumulated = {
        f"{passes} passes": {**ORACLE, "num_batches": 1, "gradient_accumulation_steps": passes}
        for passes in (2, 3)
    }
    runs = {"oracle": ORACLE, "reduced": REDUCED_ORACLE, **late, **accumulated, **COMPARED}
    found = run_under_a_controller(list(runs.values()), folder)
    return dict(zip(runs, found, strict=True))


def test_two_towers_of_each_worker_train_as_the_oracle_says(results):
    for name, flags in (("oracle", ORACLE), ("reduced", REDUCED_ORACLE)):
        found = results[name]
        expected = expected_losses(slopes(4), flags)
        np.testing.assert_allclose(found["losses"], expected, rtol=1e-5)
        assert (found["towers"], found["global_batch"]) == (4, 8)
    # Each scalar to and from four towers; the losses of two, and of weights on the ps task, which
    # gets the rate.
    assert results["oracle"]["sent"] == [2 * 8 + 2 + 2 + 1, 4 * 21]
    # Each scalar from two towers of the other worker, and back once; two losses, one rate.
    assert results["reduced"]["sent"] == [2 * 3 + 2 + 1, 4 * 9]


def test_every_pass_of_a_step_reads_the_variables(results):
    two, three = (results[f"{passes} passes"]["sent"] for passes in (2, 3))
    # Two scalars to four towers.
    assert [b - a for a, b in zip(two, three, strict=True)] == [8, 4 * 8]


def test_no_function_overtakes_what_was_written_before_it(results):
    losses = results["oracle"]["losses"]
    assert results["shadows"]["losses"] == pytest.approx(losses, rel=1e-5)
    assert results["saved"]["losses"] == pytest.approx(losses[:RESUMED_AT], rel=1e-5)
    assert results["resumed"]["losses"] == pytest.approx(losses[RESUMED_AT:], rel=1e-5)
    late, punctual = (
        [evaluation["loss"] for evaluation in results[name]["evaluations"]]
        for name in ("evaluated", "batch norm of workers")
    )
    assert late == pytest.approx(punctual, rel=1e-6)


def test_parts_of_files_that_end_early_fail_nothing(made):
    """An error of the other worker's process would cancel what else is under way there."""
    folder, results = made
    assert [one["examples"] for one in results["evaluated files"]["evaluations"]] == [11, 11]
    for log in ("err0", "err1"):
        assert "End of sequence" not in (folder / log).read_text()


@pytest.fixture(scope="module")
def alone():
    """What one process with four towers makes of flags, once for all modes."""
    made: dict[str, dict[str, object]] = {}

    def run(flags):
        own = {**flags, "num_gpus": 4, "device": "cpu", "variable_update": "replicated"}
        own.pop("all_reduce_spec", None)
        key = json.dumps(own)
        if key not in made:
            made[key] = outcome(own)
        return made[key]

    return run


@pytest.mark.parametrize("name", COMPARED)
def test_a_job_does_what_one_process_does(name, results, alone):
    expected, found = alone(COMPARED[name]), results[name]
    tolerance = 2e-2 if "infinity" in name else 1e-5  # fp16
    np.testing.assert_allclose(found["losses"], expected["losses"], rtol=tolerance)
    skipped = expected["skipped"] and list(expected["skipped"])
    assert (found["skipped"], found["loss_scale"]) == (skipped, expected["loss_scale"])
    assert bool(skipped) == ("infinity" in name)
    assert len(found["evaluations"]) == len(expected["evaluations"])
    for own, wanted in zip(found["evaluations"], expected["evaluations"], strict=True):
        assert own == pytest.approx(wanted, rel=5e-4)  # batch norm amplifies rounding
