"""collective_all_reduce between real processes against NumPy and against one process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from cifar10_writer import write_cifar10
from oracle import PLUGIN, RATE, STEPS, expected_losses, slopes
from worker_runs import filled, outcome, poisoned, processes, run_in_workers

from cnnbench.cluster.ports import ReservedPorts
from cnnbench.data import synthetic
from cnnbench.predict.formulas import traffic
from cnnbench.predict.workload import Tensor
from cnnbench.records.run import RunRecord

PLUGINS = Path(PLUGIN).parent
ONE_PROCESS = {"variable_update": "replicated", "device": "cpu"}


def of(model: str, **flags: object) -> dict[str, object]:
    own = {"model": model, "model_plugin": str(PLUGINS / f"{model}_plugin.py")}
    own |= {"num_warmup_batches": 0, "init_learning_rate": RATE, "num_batches": 3}
    return {**own, **flags}


ORACLE = of("oracle", num_batches=STEPS, optimizer="momentum", weight_decay=0.0625)
# Flags of a run, towers of a worker, and what NumPy has to know of it.
BY_HAND = {
    "two towers each": (ORACLE, 2, {}),
    "one tower each": ({**ORACLE, "num_warmup_batches": 0}, 1, {}),
    "a sum in two levels, tensor by tensor": (
        {
            **ORACLE,
            "gradient_reduction": "sum",
            "all_reduce_spec": "copy/collective",
            "gradient_bucket_bytes": 0,
            "allreduce_merge_scope": 2,
        },
        2,
        {"reduction": "sum"},
    ),
    "packed, one step late": (
        {**ORACLE, "gradient_repacking": 2, "variable_consistency": "relaxed"},
        2,
        {"relaxed": True},
    ),
    "two rings, small ones joined": (
        {**ORACLE, "all_reduce_spec": "collective#2", "agg_small_grads_max_bytes": 64},
        2,
        {},
    ),
}
NORMAL = of(
    "normal",
    num_gpus=2,
    optimizer="momentum",
    bn_stats="mean",
    eval_during_training_every_n_steps=2,
    num_eval_batches=1,
)
# Compared with one process that has all the towers.
COMPARED = {
    "batch norm": NORMAL,
    "moments of the first tower": {**NORMAL, "bn_stats": "first", "num_batches": 2},
    "sparse gradients": of("rows", num_gpus=2),
    "sparse gradients made dense": of("rows", sparse_to_dense_grads=True),
    "an infinity in one worker": of(
        "poison",
        precision="fp16",
        fp16_enable_auto_loss_scale=True,
        poisoned=True,
    ),
    "gradients in 16 bits": of("normal", num_gpus=2, precision="bf16"),
}
SAVED = of("normal", optimizer="momentum", train_dir="{folder}/w{worker}", num_batches=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("workers")
    rng = np.random.default_rng(5)
    images = rng.integers(0, 256, (11, 32, 32, 3), np.uint8)
    write_cifar10(folder / "cifar", images, rng.integers(0, 10, 11), subset="validation")
    write_cifar10(folder / "cifar", images, rng.integers(0, 10, 11))
    trained = {"model": "trivial", "data_name": "cifar10", "batch_size": 2, "num_batches": 1}
    trained |= {"train_dir": str(folder / "one"), "num_warmup_batches": 0, "num_gpus": 1}
    outcome({**ONE_PROCESS, **trained})
    (folder / "one").rename(folder / "evaluated0")
    return folder


EVALUATED = {"model": "trivial", "data_name": "cifar10", "batch_size": 2, "eval": True}
EVALUATED |= {"num_eval_epochs": 1.0, "data_dir": "{folder}/cifar"}


@pytest.fixture(scope="module")
def results(folder: Path) -> dict[str, list[dict[str, object]]]:
    """What two workers made of every run, by its name; one start of TensorFlow for all."""
    runs: dict[str, dict[str, object]] = {
        name: {**flags, "num_gpus": towers} for name, (flags, towers, _) in BY_HAND.items()
    }
    runs |= COMPARED
    runs["saved"] = SAVED
    runs["resumed"] = {**SAVED, "num_batches": 4}
    runs["evaluated"] = {**EVALUATED, "train_dir": "{folder}/evaluated{worker}"}
    runs["steady"] = of("oracle", warmup="auto", max_warmup_batches=30, num_warmup_batches=None)
    runs["lost"] = of("oracle", init_learning_rate=1e30, num_batches=9)
    texts = [filled(run, folder=folder) for run in runs.values()]
    return dict(zip(runs, run_in_workers(2, texts, folder), strict=True))


@pytest.mark.parametrize("name", BY_HAND)
def test_losses_equal_the_oracle(name: str, results) -> None:
    _, towers, changes = BY_HAND[name]
    c = slopes(2 * towers)
    expected = expected_losses(
        c, "replicated", "momentum", 0.0625, **{"reduction": "mean", **changes}
    )
    for worker in results[name]:
        np.testing.assert_allclose(worker["losses"], expected, rtol=1e-5)
        assert (worker["towers"], worker["global_batch"]) == (2 * towers, 4 * towers)


def test_a_step_sends_what_rings_of_both_workers_send(results) -> None:
    # One bucket of both gradients, and the loss with the wish to stop, two scalars each.
    messages, size = traffic("collective", Tensor(2), 2)
    for worker in results["one tower each"]:
        assert worker["sent"] == [2 * messages, 2 * size]
    # Of the four links of a ring of four towers, two are between workers.
    of_ring = [part / 2 for part in traffic("collective", Tensor(2), 4)]
    for worker in results["two towers each"]:
        assert worker["sent"] == [of_ring[0] + messages, of_ring[1] + size]


@pytest.mark.parametrize("name", COMPARED)
def test_workers_do_what_one_process_does(name: str, results, monkeypatch) -> None:
    flags = dict(COMPARED[name])
    if flags.pop("poisoned", False):
        monkeypatch.setattr(synthetic, "synthetic_rows", poisoned(synthetic.synthetic_rows))
    flags |= {"num_gpus": 2 * flags.get("num_gpus", 1), **ONE_PROCESS}
    expected = outcome(flags)
    tolerance = 2e-2 if flags.get("precision", "fp32") != "fp32" else 1e-5
    for worker in results[name]:
        np.testing.assert_allclose(worker["losses"], expected["losses"], rtol=tolerance)
        assert worker["skipped"] == (list(expected["skipped"]) if expected["skipped"] else None)
        assert worker["loss_scale"] == expected["loss_scale"]
        assert len(worker["evaluations"]) == len(expected["evaluations"])
        for found, wanted in zip(worker["evaluations"], expected["evaluations"], strict=True):
            assert found == pytest.approx(wanted, rel=1e-4)
    assert expected["skipped"] if "infinity" in name else len(set(expected["losses"])) > 1


def test_checkpoints_interchange_although_workers_share_no_folder(results, folder: Path) -> None:
    assert not (folder / "w1").exists()
    saved = outcome({**SAVED, **ONE_PROCESS, "num_gpus": 2, "train_dir": str(folder / "whole")})
    more = {"num_batches": 4, "num_gpus": 2, "train_dir": str(folder / "whole")}
    resumed = outcome({**SAVED, **ONE_PROCESS, **more})
    for number in range(2):
        np.testing.assert_allclose(results["saved"][number]["losses"], saved["losses"], rtol=1e-5)
        found = results["resumed"][number]["losses"]
        np.testing.assert_allclose(found, resumed["losses"], rtol=1e-5)
    by_one = outcome({**SAVED, **ONE_PROCESS, "num_batches": 5, "train_dir": str(folder / "w0")})
    assert len(by_one["losses"]) == 1
    assert by_one["losses"][0] < saved["losses"][0]


def test_an_evaluation_counts_every_example_once(results, folder: Path) -> None:
    flags = {**EVALUATED, **ONE_PROCESS, "data_dir": str(folder / "cifar")}
    (expected,) = outcome({**flags, "train_dir": str(folder / "evaluated0")})["evaluations"]
    assert expected["examples"] == 11
    for worker in results["evaluated"]:
        assert worker["evaluations"] == [pytest.approx(expected, rel=1e-5)]


def test_what_ends_a_run_ends_it_in_all_workers(results) -> None:
    first, second = results["steady"]
    assert len(first["warmup_losses"]) == len(second["warmup_losses"]) > 9
    for worker in results["lost"]:
        assert "loss" in worker["error"]
        assert len(worker["losses"]) == len(results["lost"][0]["losses"]) < 9


def workers_of(ports: list[int], *flags: str) -> list[list[str]]:
    """The command of each worker of a run that would last for minutes."""
    hosts = ",".join(f"localhost:{port}" for port in ports)
    common = [sys.executable, "-m", "cnnbench", "--variable_update=collective_all_reduce"]
    common += ["--device=cpu", "--model=oracle", f"--model_plugin={PLUGIN}", "--progress=off"]
    common += ["--num_batches=1000000", "--display_every=100", f"--worker_hosts={hosts}", *flags]
    return [[*common, "--job_name=worker", f"--task_index={i}"] for i in range(len(ports))]


def until_training(folder: Path, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        if "\n100\t" in (folder / "out0").read_text():
            return
        assert process.poll() is None, (folder / "err0").read_text()
        time.sleep(0.1)
    raise AssertionError("worker 0 did not begin to train within 60 s")


@pytest.mark.parametrize(("name", "status"), [("SIGKILL", 4), ("SIGINT", 130)])
def test_a_worker_that_ends_ends_the_others(name: str, status: int, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    with ReservedPorts(2) as ports:
        commands = workers_of(ports.numbers, f"--result_json={record}")
        with processes(commands, tmp_path) as (first, second):
            until_training(tmp_path, first)
            os.kill(second.pid, getattr(signal, name))
            assert first.wait(30) == status
            second.wait(30)
    told = RunRecord.from_json(record.read_text())
    assert len(told.step_seconds) >= 100
    last = (tmp_path / "err0").read_text().splitlines()[-1]
    if name == "SIGKILL":
        assert f"worker:1 (localhost:{ports.numbers[1]})" in last
        assert "worker:1" in told.error.message
    else:
        assert second.returncode == status
        assert told.status == "interrupted"
    assert (tmp_path / "out1").read_text() == ""
