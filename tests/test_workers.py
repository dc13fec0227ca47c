"""The modes with a step in every worker, between real processes: NumPy and one process agree.

Tests variable_mgr/workers.py.
"""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
import tensorflow as tf
from data_sets import write_cifar10, write_records
from forked import unhurried, until
from oracle import STEPS, expected_losses, sent_by_all, slopes
from short_runs import NETWORKS, RATE
from worker_runs import (
    filled,
    labels_read,
    made_once,
    outcome,
    processes,
    run_in_workers,
    saved_values,
)

from cnnbench.base.ports import ReservedPorts
from cnnbench.data.imagenet import serialize
from cnnbench.records.run import RunRecord

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),  # the first test waits for all runs of both workers
    pytest.mark.usefixtures("quick_start"),
]

ONE_PROCESS = {"variable_update": "replicated", "device": "cpu"}
BY_STRATEGY = {"variable_update": "multi_worker_mirrored_strategy"}


def of(model, **flags):
    own = {"model": model, "plugin": NETWORKS}
    own |= {"num_warmup_batches": 0, "init_learning_rate": RATE, "num_batches": 3}
    return {**own, "weight_decay": 0, **flags}


ORACLE = of("oracle", num_batches=STEPS, optimizer="momentum", weight_decay=0.0625)
OF_MATRICES = {**ORACLE, "model": "oracle_of_matrices"}
# Flags of a run, and towers of a worker.
BY_HAND = {
    "two towers each": (ORACLE, 2),
    "one tower each": ({**OF_MATRICES, "optimizer": "lamb", "check_replica_consistency": 2}, 1),
    "a sum in two levels, tensor by tensor": (
        {
            **ORACLE,
            "gradient_reduction": "sum",
            "all_reduce_spec": "copy/collective",
            "gradient_bucket_bytes": 0,
            "allreduce_merge_scope": 2,
        },
        2,
    ),
    "packed, in two rings, one step late": (
        {
            **ORACLE,
            "all_reduce_spec": "collective#2",
            "agg_small_grads_max_bytes": 64,
            "gradient_repacking": 2,
            "variable_consistency": "relaxed",
        },
        2,
    ),
    "by a strategy": ({**OF_MATRICES, "optimizer": "lars", **BY_STRATEGY}, 1),
    "by a strategy, a sum in packs": (
        {
            **ORACLE,
            **BY_STRATEGY,
            "gradient_reduction": "sum",
            "cross_device_ops": "ring",
            "bytes_per_pack": 4,
        },
        1,
    ),
}
EVALUATING = {"eval_during_training_every_n_steps": 2, "num_eval_batches": 1}
NORMAL = of(
    "normal",
    num_gpus=2,
    optimizer="momentum",
    bn_stats="mean",
    **EVALUATING,
)
INFINITE = of("poison", precision="fp16", fp16_enable_auto_loss_scale=True, poisoned=True)
# Compared with one process that has all the towers.
COMPARED = {
    "batch norm": NORMAL,
    "sparse gradients": of("rows", num_gpus=2),
    "sparse gradients in 16 bits, by a strategy": of(
        "rows", num_gpus=1, precision="bf16", **BY_STRATEGY
    ),
    "an infinity in one worker": INFINITE,
    "an infinity in one worker, by a strategy": {**INFINITE, **BY_STRATEGY},
}
# What one process has to do for the same weights and moving averages.
SYNCHRONISED = of("normal", optimizer="momentum", bn_stats="sync", batch_size=2)
MOMENTS = {
    "of all batches": ({**SYNCHRONISED, "num_gpus": 2}, {"num_gpus": 1, "batch_size": 8}),
    "of all batches, by a strategy": (
        {**SYNCHRONISED, **BY_STRATEGY, "num_gpus": 1},
        {"num_gpus": 1, "batch_size": 4},
    ),
}
FINISHED = {**EVALUATING, "num_batches": 3, "num_warmup_batches": 2}
SAVED = of("normal", optimizer="momentum", num_batches=2)
SAVING = {"workers": {}, "strategy": BY_STRATEGY}


def write_data(folder):
    """Data sets, and what one process has trained on one of them."""
    rng = np.random.default_rng(5)
    images = rng.integers(0, 256, (11, 32, 32, 3), np.uint8)
    write_cifar10(folder / "cifar", images, rng.integers(0, 10, 11), subset="validation")
    write_cifar10(folder / "cifar", images, rng.integers(0, 10, 11))
    write_cifar10(folder / "shared", images[:8], np.arange(8))
    write_black_images(folder / "records", [[1, 2, 3], [4, 5], [6, 7, 8]])
    trained = {"model": "trivial", "data_name": "cifar10", "batch_size": 2, "num_batches": 1}
    trained |= {"train_dir": str(folder / "one"), "num_warmup_batches": 0, "weight_decay": 0}
    outcome({**ONE_PROCESS, **trained})
    (folder / "one").rename(folder / "evaluated0")


EVALUATED = {"model": "trivial", "data_name": "cifar10", "batch_size": 2, "eval": True}
EVALUATED |= {"num_eval_epochs": 1.0, "data_dir": "{folder}/cifar"}
READING = {"model": "trivial", "batch_size": 2, "num_batches": 1, "weight_decay": 0}
OF_CIFAR10 = {"data_name": "cifar10", "data_dir": "{folder}/shared"}
OF_RECORDS = {"data_name": "imagenet", "data_dir": "{folder}/records"}
DISTRIBUTED = {**READING, **BY_STRATEGY, "input_distribution": "strategy", "reads": 4}
SHARED_OUT = {
    "auto": {**OF_RECORDS, "auto_shard_policy": "auto"},
    "data": {**OF_CIFAR10, "auto_shard_policy": "data"},
    "off": {**OF_CIFAR10, "auto_shard_policy": "off"},
    "manual": {**OF_CIFAR10, "input_sharding": "manual"},
    "file": {**OF_RECORDS, "auto_shard_policy": "file"},
}


def write_black_images(folder, files):
    """Training records with these labels in each file."""
    folder.mkdir()
    jpeg = tf.io.encode_jpeg(tf.zeros([64, 64, 3], tf.uint8)).numpy()
    for number, labels in enumerate(files):
        records = [serialize(jpeg, 64, 64, label, "a.jpg", "n01", "black") for label in labels]
        write_records(folder / f"train-{number:05d}-of-{len(files):05d}", records)


def of_all_runs(folder):
    """What two workers make of every run, by its name; one start of TensorFlow for all."""
    write_data(folder)
    runs: dict[str, dict[str, object]] = {
        name: {**flags, "num_gpus": towers} for name, (flags, towers) in BY_HAND.items()
    }
    runs |= COMPARED
    for name, (flags, _) in MOMENTS.items():
        runs[name] = {**flags, "train_dir": f"{{folder}}/{name}{{worker}}"}
    for name, mode in SAVING.items():
        saved = {**SAVED, **mode, "train_dir": f"{{folder}}/{name}{{worker}}"}
        runs[f"saved by {name}"] = saved
        runs[f"resumed by {name}"] = {**saved, "num_batches": 4}
        runs[f"finished by {name}"] = {**saved, **FINISHED}
        evaluated = {**EVALUATED, **mode, "train_dir": "{folder}/evaluated{worker}"}
        runs[f"evaluated by {name}"] = evaluated
    runs |= {name: {**DISTRIBUTED, **flags} for name, flags in SHARED_OUT.items()}
    runs["steady"] = of("oracle", warmup="auto", max_warmup_batches=30, num_warmup_batches=None)
    runs["bent"] = {**runs["one tower each"], "bent": "1"}
    stopping = {**EVALUATING, "stop_at": "loss:1", "num_batches": 5}
    runs["stopped"] = {**of("oracle", **stopping), "reached_by": "0"}
    # Twice, the second time from the checkpoint of the first.
    timed = {"num_batches": 1_000_000, "max_seconds": 0.3, "train_dir": "{folder}/timed{worker}"}
    runs["timed"] = runs["timed again"] = of("oracle", **timed)
    runs["lost"] = of("oracle", init_learning_rate=1e30, num_batches=9)
    texts = [filled(run, folder=folder) for run in runs.values()]
    return dict(zip(runs, run_in_workers(2, texts, folder), strict=True))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return made_once(tmp_path_factory, "workers", of_all_runs)


@pytest.fixture(scope="module")
def folder(made):
    """The folder of all runs, with the data that they read and what they have saved."""
    return made[0]


@pytest.fixture(scope="module")
def results(made):
    """See `of_all_runs`."""
    return made[1]


@pytest.mark.parametrize("name", BY_HAND)
def test_losses_equal_the_oracle(name, results):
    flags, towers = BY_HAND[name]
    expected = expected_losses(slopes(2 * towers), flags)
    for worker in results[name]:
        np.testing.assert_allclose(worker["losses"], expected, rtol=1e-5)
        assert (worker["towers"], worker["global_batch"]) == (2 * towers, 4 * towers)


def test_a_step_sends_what_rings_of_both_workers_send(results):
    # One bucket of both gradients, and the loss with the wish to stop, two scalars each.
    messages, size = sent_by_all("collective", 2, 2, 1)
    for worker in results["one tower each"]:
        assert worker["sent"] == [2 * messages, 2 * size]
    # A strategy sends all four as one tensor.
    for worker in results["by a strategy"]:
        assert worker["sent"] == [messages, 2 * size]
    # Of the four links of a ring of four towers, two are between workers.
    of_ring = [part / 2 for part in sent_by_all("collective", 2, 4, 1)]
    for worker in results["two towers each"]:
        assert worker["sent"] == [of_ring[0] + messages, of_ring[1] + size]


@pytest.mark.parametrize("name", COMPARED)
def test_workers_do_what_one_process_does(name, results):
    flags = dict(COMPARED[name])
    flags |= {"num_gpus": 2 * flags.get("num_gpus", 1), **ONE_PROCESS}
    expected = outcome(flags)
    tolerance = 2e-2 if flags.get("precision", "fp32") != "fp32" else 1e-5
    for worker in results[name]:
        np.testing.assert_allclose(worker["losses"], expected["losses"], rtol=tolerance)
        assert worker["skipped"] == (list(expected["skipped"]) if expected["skipped"] else None)
        assert worker["loss_scale"] == expected["loss_scale"]
        assert len(worker["evaluations"]) == len(expected["evaluations"])
        for found, wanted in zip(worker["evaluations"], expected["evaluations"], strict=True):
            assert found == pytest.approx(wanted, rel=5e-4)
    assert expected["skipped"] if "infinity" in name else len(set(expected["losses"])) > 1


@pytest.mark.parametrize("name", MOMENTS)
def test_moments_over_workers_leave_the_weights_and_averages_of_one_process(
    name, results, folder, tmp_path
):
    flags, changes = MOMENTS[name]
    expected = outcome({**flags, **ONE_PROCESS, **changes, "train_dir": str(tmp_path)})
    for worker in results[name]:
        np.testing.assert_allclose(worker["losses"], expected["losses"], rtol=2e-4)
    found, wanted = saved_values(folder / f"{name}0"), saved_values(tmp_path)
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        np.testing.assert_allclose(found[key], value, rtol=2e-3, atol=5e-4, err_msg=key)


def test_checkpoints_interchange_although_workers_share_no_folder(results, folder, tmp_path):
    one = {**SAVED, **ONE_PROCESS, "num_gpus": 2, "train_dir": str(tmp_path)}
    expected = {"saved": outcome(one), "resumed": outcome({**one, "num_batches": 4})}
    for name in SAVING:
        assert not (folder / f"{name}1").exists()
        for kind, wanted in expected.items():
            for worker in results[f"{kind} by {name}"]:
                np.testing.assert_allclose(worker["losses"], wanted["losses"], rtol=1e-5)
        chief = {"num_batches": 5, "num_gpus": 1, "train_dir": str(folder / f"{name}0")}
        by_one = outcome({**one, **chief})
        assert len(by_one["losses"]) == 1
        assert by_one["losses"][0] < expected["saved"]["losses"][0]


@pytest.mark.parametrize("name", SAVING)
def test_a_finished_training_ends_in_all_workers_with_its_last_evaluation(name, results):
    """Only the chief sees the checkpoint, which is one warm-up step beyond the last batch."""
    for worker in results[f"finished by {name}"]:
        assert (worker["warmup_losses"], worker["losses"]) == ([], [])
        assert [one["step"] for one in worker["evaluations"]] == [4]


def test_the_chief_decides_whether_the_target_is_reached(results):
    for worker in results["stopped"]:
        assert len(worker["losses"]) == 2


def test_an_evaluation_counts_every_example_once(results, folder):
    flags = {**EVALUATED, **ONE_PROCESS, "data_dir": str(folder / "cifar")}
    (expected,) = outcome({**flags, "train_dir": str(folder / "evaluated0")})["evaluations"]
    assert expected["examples"] == 11
    for name in SAVING:
        for worker in results[f"evaluated by {name}"]:
            assert worker["evaluations"] == [pytest.approx(expected, rel=1e-5)]


def rows(read):
    return [label for step in read for batch in step for label in batch]


@pytest.mark.parametrize("name", ["auto", "data", "manual"])
def test_d9_workers_share_out_the_batches_of_one_process(name, results, folder):
    flags = filled({**READING, **SHARED_OUT[name], **ONE_PROCESS, "num_gpus": 2}, folder=folder)
    for flag in {"auto_shard_policy", "input_sharding"} & flags.keys():
        del flags[flag]
    both = labels_read(flags, 4)
    first, second = results[name]
    assert [[*one, *other] for one, other in zip(first, second, strict=True)] == both
    # Two steps are an epoch.
    assert sorted(rows(first[:2]) + rows(second[:2])) == sorted({*rows(first), *rows(second)})


def test_d9_d10_workers_read_everything_or_their_own_part(results):
    first, second = results["off"]
    assert first == second
    assert sorted(rows(first)) == list(range(8))
    first, second = (rows(read[:2]) for read in results["manual"])
    assert sorted(first + second) == list(range(8))


def test_d9_workers_share_out_whole_files(results):
    first, second = map(rows, results["file"])
    assert {*first} == {1, 2, 3, 6, 7, 8}
    assert {*second} == {4, 5}


def test_what_ends_a_run_ends_it_in_all_workers(results):
    first, second = results["steady"]
    assert len(first["warmup_losses"]) == len(second["warmup_losses"]) > 9
    for name in ("timed", "timed again"):
        assert {(worker["ended_by"], worker["error"]) for worker in results[name]} == {
            ("max_seconds", "")
        }
        assert len({len(worker["losses"]) for worker in results[name]}) == 1
    for worker in results["lost"]:
        assert "loss" in worker["error"]
        assert len(worker["losses"]) == len(results["lost"][0]["losses"]) < 9


def test_copies_of_different_workers_are_compared(results):
    for worker in results["one tower each"]:
        assert (worker["replica_checks"], worker["error"]) == (1 + STEPS // 2, "")
    for worker in results["bent"]:
        assert len(worker["losses"]) == 2
        assert "replicas diverged by global step 2" in worker["error"]
        assert "on worker 1 differs from worker 0" in worker["error"]


def workers_of(ports, *flags):
    """The program of each worker of a run that would last for minutes."""
    hosts = ",".join(f"localhost:{port}" for port in ports)
    common = ["--variable_update=collective_all_reduce"]
    common += ["--device=cpu", "--model=oracle", f"--plugin={NETWORKS}", "--progress=off"]
    common += ["--display_every=100", f"--worker_hosts={hosts}", *flags]
    own = ([*common, "--job_name=worker", f"--task_index={i}"] for i in range(len(ports)))
    return [(unhurried, flags) for flags in own]


ENDLESS = ("--num_batches=1000000",)
EVALUATED_ENDLESSLY = ("--num_batches=2", "--num_warmup_batches=0", "--num_eval_batches=1000000")
EVALUATED_ENDLESSLY += ("--eval_during_training_every_n_steps=2",)


@pytest.mark.parametrize(
    ("name", "status", "flags"),
    [("SIGKILL", 4, ENDLESS), ("SIGQUIT", 130, ENDLESS), ("SIGTERM", 130, EVALUATED_ENDLESSLY)],
)
def test_a_worker_that_ends_ends_the_others(name, status, flags, tmp_path):
    record = tmp_path / "record.json"
    with ReservedPorts(2) as ports:
        programs = workers_of(ports.numbers, *flags, f"--result_json={record}")
        with processes(programs, tmp_path) as (first, second):
            printed, log = tmp_path / "out0", tmp_path / "err0"
            until(lambda: "\n100\t" in printed.read_text(), 200, first, log)
            os.kill(second.pid, getattr(signal, name))
            assert first.wait(30) == status
            second.wait(30)
    told = RunRecord.from_json(record.read_text())
    assert len(told.step_seconds) >= 100 or (flags is EVALUATED_ENDLESSLY and told.losses)
    last = (tmp_path / "err0").read_text().splitlines()[-1]
    if name == "SIGKILL":
        assert [one.lost for one in told.cluster.workers] == [False, True]
        assert f"worker:1 (localhost:{ports.numbers[1]})" in last
        assert "worker:1" in told.error.message
    else:
        assert second.returncode == status
        assert told.status == "interrupted"
    assert (tmp_path / "out1").read_text() == ""
