"""Jobs under one controller: real processes, whose losses are those of NumPy and of one process."""

from __future__ import annotations

import json
import signal
import time

import numpy as np
import pytest
from cifar10_writer import write_cifar10
from jobs import SECONDS, record_of, started
from oracle import PLUGIN, RATE, STEPS, expected_losses, slopes

from cnnbench import BenchmarkCNN, Params

pytestmark = pytest.mark.timeout(2 * SECONDS)

ORACLE = {
    "device": "cpu",
    "model": "oracle",
    "model_plugin": PLUGIN,
    "optimizer": "momentum",
    "weight_decay": 0.0625,
    "init_learning_rate": RATE,
    "num_batches": STEPS,
    "num_warmup_batches": 0,
    "quiet_conditions": "load",
}


@pytest.mark.parametrize(
    ("towers", "order", "flags", "controller", "sent"),
    [
        (
            2,
            ("worker:1", "worker:0"),
            {"variable_update": "distributed_all_reduce", "all_reduce_spec": "pscpu:4:copy/xring"},
            False,
            # Each scalar from two towers of the other worker, and back once; two losses, one rate.
            (2 * 3 + 2 + 1, 4 * 9),
        ),
        (
            1,
            ("ps:0", "controller:0", "worker:0", "worker:1"),
            {"variable_update": "parameter_server", "gradient_reduction": "sum"},
            True,
            # Each scalar to and from two workers; the loss of one, and of weights on the ps task,
            # which gets the rate.
            (2 * 4 + 1 + 2 + 1, 4 * 12),
        ),
        (
            1,
            ("worker:0", "ps:0", "worker:1"),
            {"variable_update": "distributed_replicated"},
            False,
            # Likewise.
            (2 * 4 + 1 + 2 + 1, 4 * 12),
        ),
    ],
    ids=["distributed_all_reduce", "parameter_server", "distributed_replicated"],
)
def test_losses_equal_the_oracle(tmp_path, towers, order, flags, controller, sent):
    all_flags = {**ORACLE, "num_gpus": towers, **flags}
    record = record_of(tmp_path, all_flags, order, controller=controller)
    reduction = flags.get("gradient_reduction", "mean")
    mode = flags["variable_update"]
    expected = expected_losses(slopes(2 * towers), mode, "momentum", 0.0625, reduction)
    assert record["losses"] == pytest.approx(expected, rel=1e-5)
    assert record["batch"] == {"per_device": 2, "global": 4 * towers}
    placement = record["placement"]
    assert (placement["num_workers"], placement["num_towers"]) == (2, 2 * towers)
    cluster = record["cluster"]
    assert (cluster["messages_per_step"], cluster["bytes_per_step"]) == sent


DIGITS = {
    "device": "cpu",
    "model": "trivial",
    "data_name": "cifar10",
    "batch_size": 4,
    "optimizer": "momentum",
    "num_eval_epochs": 1,
    "quiet_conditions": "load",
}


def test_checkpoints_and_evaluations_are_those_of_one_process(tmp_path):
    draw = np.random.default_rng(1)
    for subset, count in (("train", 24), ("validation", 26)):
        images = draw.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        write_cifar10(tmp_path / "data", images, draw.integers(0, 10, count), subset=subset)
    flags = {**DIGITS, "data_dir": str(tmp_path / "data")}
    training = {"num_batches": 2, "num_warmup_batches": 1, "eval_during_training_every_n_steps": 2}
    # The folder of the checkpoints is a relative one, and every task has its own.
    given = {**flags, **training, "variable_update": "parameter_server", "train_dir": "train"}
    made = record_of(tmp_path, given, ("ps:0", "worker:0", "worker:1"))
    assert [path.parent.name for path in tmp_path.glob("*:*/train")] == ["worker:0"]
    alone = Params(**flags, train_dir=str(tmp_path / "worker:0" / "train"))
    found = BenchmarkCNN(alone.replace(eval=True)).run().evaluations[0]
    final = made["evaluations"][-1]
    assert final["examples"] == found.examples == 26
    assert final["global_step"] == found.global_step == 3
    assert final["loss"] == pytest.approx(found.loss, rel=1e-5)
    assert final["top_1"] == pytest.approx(found.top_1)
    resuming = alone.replace(num_batches=5, num_warmup_batches=0, num_eval_epochs=None)
    assert len(BenchmarkCNN(resuming).run().losses) == 2


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_worker_is_named_and_ends_all(tmp_path, number):
    flags = [f"--{name}={value}" for name, value in ORACLE.items()]
    flags += [
        "--variable_update=parameter_server",
        "--num_batches=1000000",
        "--display_every=10000",
    ]
    order = ("ps:0", "worker:1", "worker:0")
    chief_flags = [f"--result_json={tmp_path / 'record.json'}"]
    with started(tmp_path, flags, order, chief_flags=chief_flags) as tasks:
        until = time.monotonic() + SECONDS
        while "\n1\t" not in tasks.printed("worker:0"):
            assert time.monotonic() < until, tasks.errors()
            time.sleep(0.1)
        tasks.processes["worker:1"].send_signal(number)
        lost = time.monotonic()
        for name in ("worker:0", "ps:0"):
            tasks.processes[name].wait(SECONDS)
        assert time.monotonic() - lost < 60  # 30 on a machine that does nothing else
        tasks.processes["worker:1"].kill()  # what was stopped does not end by itself
        codes = tasks.wait()
    assert codes == {"ps:0": 4, "worker:1": -signal.SIGKILL, "worker:0": 4}, tasks.errors()
    for name in ("ps:0", "worker:0"):
        assert "lost worker:1 (localhost:" in tasks.printed(name, "err")
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["status"] == "failed"
    assert "lost worker:1" in record["error"]["message"]
    assert record["losses"]
