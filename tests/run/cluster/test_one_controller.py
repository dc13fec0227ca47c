"""Jobs with one process that makes the step of all workers: real processes, named when lost."""

import json
import signal
import time

import pytest
from data_sets import write_random_cifar10
from forked import cnnbench, impatient
from jobs import SECONDS, record_of, started
from oracle import STEPS
from short_runs import NETWORKS, RATE

from cnnbench import BenchmarkCNN, Params

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_start")]

ORACLE = {
    "device": "cpu",
    "model": "oracle",
    "plugin": NETWORKS,
    "optimizer": "momentum",
    "weight_decay": 0.0625,
    "init_learning_rate": RATE,
    "num_batches": STEPS,
    "num_warmup_batches": 0,
    "quiet_conditions": "load",
}


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
    """The ps task, as in job files of tf_cnn_benchmarks, repeats nothing but the addresses.

    It has no GPU, other flags than the run, and no data.
    """
    write_random_cifar10(tmp_path / "data", train=24, validation=26)
    flags = {**DIGITS, "data_dir": str(tmp_path / "data")}
    training = {"num_batches": 2, "num_warmup_batches": 1, "eval_during_training_every_n_steps": 2}
    # The folder of the checkpoints is a relative one, and every task has its own.
    given = {**flags, **training, "variable_update": "parameter_server", "train_dir": "train"}
    given["num_gpus"] = 2
    ps_flags = ("--num_gpus=0", "--device=gpu", "--model=resnet50", "--batch_size=64")
    made = record_of(tmp_path, given, ("ps:0", "worker:0", "worker:1"), ps_flags=ps_flags)
    assert made["batch"]["global"] == 16
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


@pytest.mark.parametrize(
    ("number", "program"), [(signal.SIGKILL, cnnbench), (signal.SIGSTOP, impatient)]
)
def test_a_lost_worker_is_named_and_ends_all(tmp_path, number, program):
    flags = [f"--{name}={value}" for name, value in ORACLE.items()]
    flags += [
        "--variable_update=parameter_server",
        "--num_batches=1000000",
        "--display_every=10000",
    ]
    order = ("ps:0", "worker:1", "worker:0")
    chief_flags = [f"--result_json={tmp_path / 'record.json'}"]
    with started(tmp_path, flags, order, chief_flags=chief_flags, program=program) as tasks:
        tasks.wait_for("worker:0", "\n1\t")
        tasks.processes["worker:1"].send_signal(number)
        lost = time.monotonic()
        for name in ("worker:0", "ps:0"):
            tasks.processes[name].wait(SECONDS)
        assert time.monotonic() - lost < 60
        tasks.processes["worker:1"].kill()  # what was stopped does not end by itself
        codes = tasks.wait()
    assert codes == {"ps:0": 4, "worker:1": -signal.SIGKILL, "worker:0": 4}, tasks.errors()
    for name in ("ps:0", "worker:0"):
        assert "lost worker:1 (localhost:" in tasks.printed(name, "err")
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["status"] == "failed"
    assert "lost worker:1" in record["error"]["message"]
    assert [one["lost"] for one in record["cluster"]["workers"]] == [False, True]
    assert record["losses"]
