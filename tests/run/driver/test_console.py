"""Standard output against captured runs of tf_cnn_benchmarks, byte by byte."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cnnbench.base.stats.descriptive import Speed
from cnnbench.flags import Params, validate
from cnnbench.run.driver import describe
from cnnbench.run.driver.console import Console, Phase
from cnnbench.run.driver.plan import make_plan
from cnnbench.run.runtime.tensorflow import Devices

GOLDEN = Path(__file__).parents[2] / "golden"
DURING = {"eval_during_training_every_n_steps": 10}


def header(kind="cpu", numbers=(), version="2.21.0", **flags):
    """The header of a run on devices of a kind; `numbers` are those of its own."""
    own = {"model": "trivial", "batch_size": 8, "num_batches": 20, "device": kind, **flags}
    params = Params.from_dict(own)
    validate(params)
    plan = make_plan(params)
    own = numbers or tuple(range(params.num_gpus))
    devices = Devices(job=plan.job.on(kind), numbers=own, intra_threads=0, inter_threads=0)
    return describe.header(params, plan, devices, version, kind)


def rows(out, *values):
    for step, mean, uncertainty, jitter, loss, *accuracies in values:
        out.row(step, Speed(mean, uncertainty, jitter), loss, accuracies)


def timed(out, *values, footer=None, **flags):
    """A run from its header to its last step."""
    out.header(header(**flags))
    out.phase(Phase.GENERATING_TRAINING)
    if flags == DURING:
        out.phase(Phase.GENERATING_EVALUATION)
    for phase in (Phase.INITIALIZING, Phase.WARM_UP, Phase.WARM_UP_DONE):
        out.phase(phase)
    out.table_header("total_loss", ("top_1", "top_5") if len(values[0]) > 5 else ())
    rows(out, *values)
    if footer is not None:
        out.footer(footer)


def training(out):
    timed(
        out,
        (1, 764.8, 0, 0, 13.321),
        (10, 796.4, 15.1, 52.2, 13.321),
        (20, 781.5, 10.0, 53.0, 13.321),
        footer=706.17,
    )


def replicated_accuracy(out):
    timed(
        out,
        (1, 619.4, 0, 0, 24.182, 0.0, 1 / 16),
        (10, 643.3, 36.0, 115.7, 24.182, 0.0, 0.0),
        (20, 740.3, 68.7, 175.7, 24.182, 0.0, 0.0),
        footer=721.29,
        num_gpus=2,
        variable_update="replicated",
        all_reduce_spec="pscpu",
    )


def forward_only(out):
    timed(
        out,
        (1, 2786.1, 0, 0, 0.0, 0.375, 0.375),
        (10, 2985.2, 89.2, 230.9, 0.0, 0.375, 0.375),
        (20, 3056.5, 49.6, 144.6, 0.0, 0.375, 0.375),
        footer=2657.67,
        forward_only=True,
    )


def evaluation(out):
    out.header(header(eval=True, train_dir="/train"))
    out.phase(Phase.GENERATING_EVALUATION)
    out.phase(Phase.CHECKPOINT_LOADED, "/train/model.ckpt-22")
    out.evaluation_row(10, 923.2)
    out.evaluation_row(20, 2795.2)
    out.evaluation_result({"top_1": 1 / 160, "top_5": 0.0562}, 160)
    out.footer(1386.82)


def evaluation_without_checkpoint(out):
    out.header(header(eval=True, train_dir="/train"))
    out.phase(Phase.GENERATING_EVALUATION)
    out.phase(Phase.CHECKPOINT_NOT_FOUND, "/train")


def training_and_evaluation(out):
    first = (1, 659.3, 0, 0, 13.321), (10, 631.4, 5.1, 19.8, 13.321)
    timed(out, *first, **DURING)
    out.phase(Phase.EVALUATION, 12)
    out.evaluation_row(10, 1945.1)
    out.evaluation_result({"top_1": 0.0, "top_5": 0.0125}, 80)
    out.phase(Phase.RESUMING)
    rows(out, (20, 629.7, 4.7, 21.9, 13.321))
    out.phase(Phase.DONE)
    out.phase(Phase.FINAL_EVALUATION, 22)
    out.evaluation_row(10, 2917.8)
    out.evaluation_result({"top_1": 0.0, "top_5": 0.0125}, 80)


def training_stopped(out):
    first = (1, 623.4, 0, 0, 13.622), (10, 679.8, 11.6, 26.9, 13.621)
    timed(out, *first, **DURING)
    out.phase(Phase.EVALUATION, 12)
    out.evaluation_row(10, 1578.9)
    out.evaluation_result({"top_1": 0.0, "top_5": 0.0125}, 80)
    out.phase(Phase.STOPPING, "accuracy", "at least", -1.0)
    out.phase(Phase.DONE)


NOT_YET = {"staged_base_loss", "batch_group", "worker", "parameter_server", "single_session"}
"""Captured runs in modes that cnnbench does not have."""

RUNS = [
    training,
    replicated_accuracy,
    forward_only,
    evaluation,
    evaluation_without_checkpoint,
    training_and_evaluation,
    training_stopped,
]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
def test_output_equals_the_captured_run(run):
    stream = io.StringIO()
    run(Console(stream))
    assert stream.getvalue().encode() == (GOLDEN / f"{run.__name__}.txt").read_bytes()


def test_every_captured_run_is_replayed():
    assert {run.__name__ for run in RUNS} | NOT_YET == {p.stem for p in GOLDEN.glob("*.txt")}


def test_staged_variables_are_in_the_header():
    captured = (GOLDEN / "staged_base_loss.txt").read_text().splitlines()
    # That run had --rewriter_config, which has no meaning any more.
    expected = [line for line in captured if not line.startswith("RewriterConfig")]
    assert header(staged_vars=True) == expected[: expected.index("==========") + 1]


def test_development_versions_of_tensorflow_print_major_and_minor():
    assert header(version="2.22.0-dev20260501")[0] == "TensorFlow:  2.22"


TWO = {"job_name": "worker", "worker_hosts": "localhost:1,localhost:2"}
COLLECTIVE = {"variable_update": "collective_all_reduce"}
STRATEGY = {"variable_update": "multi_worker_mirrored_strategy"}
DISTRIBUTED = {"variable_update": "distributed_all_reduce"}


def parts_of(kind, *numbers, **flags):
    lines = header(kind, numbers, **flags)
    return dict(re.split(": +", line, maxsplit=1) for line in lines if ": " in line)


def test_a_controller_names_the_devices_of_the_workers():
    job = {"job_name": "controller", "controller_host": "localhost:3", "num_gpus": 2}
    flags = {**job, "worker_hosts": TWO["worker_hosts"], **DISTRIBUTED, "all_reduce_spec": "xring"}
    found = parts_of("gpu", 0, **flags)
    tasks = [f"job:worker/replica:0/task{i}" for i in (0, 1)]
    assert found["Devices"] == str([f"{task}/gpu:{i}" for task in tasks for i in (0, 1)])
    assert (found["SingleSess"], found["Sync"]) == ("True", "True")


def test_gpu_indices_are_named_as_on_the_machine():
    found = parts_of("gpu", 3, 1, num_gpus=2)
    assert found["Devices"] == "['/gpu:3', '/gpu:1']"


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (
            {**TWO, **COLLECTIVE, "num_gpus": 2},
            "collective (--communication_hint=auto), 4 devices in 2 processes",
        ),
        (
            {**COLLECTIVE, "num_gpus": 2, "communication_hint": "ring"},
            "collective (--communication_hint=ring), 2 devices in 1 process",
        ),
        (COLLECTIVE, "None, 1 device in 1 process"),
        (
            {**TWO, **COLLECTIVE, "num_gpus": 2, "all_reduce_spec": "copy/collective"},
            "copy/collective (--communication_hint=auto), 4 devices in 2 processes",
        ),
        ({**TWO, **COLLECTIVE, "forward_only": True}, "None, 2 devices in 2 processes"),
        ({**TWO, **STRATEGY}, "ring (--cross_device_ops=auto), 2 devices in 2 processes"),
        (
            {**TWO, **STRATEGY, "num_gpus": 2, "device": "gpu"},
            "nccl (--cross_device_ops=auto), 4 devices in 2 processes",
        ),
        ({**TWO, **DISTRIBUTED, "all_reduce_spec": "xring"}, "xring"),
        ({"variable_update": "replicated", "num_gpus": 2}, "None"),
        ({"variable_update": "parameter_server", "num_gpus": 2}, None),
        ({"variable_update": "central_storage_strategy", "num_gpus": 2}, None),
    ],
)
def test_how_gradients_are_reduced_and_between_how_many_devices(flags, text):
    assert parts_of(flags.get("device", "cpu"), **flags).get("AllReduce") == text


def test_losses_that_are_not_finite():
    stream = io.StringIO()
    rows(Console(stream), (1, 1, 0, 0, float("nan")), (2, 1, 0, 0, float("inf")))
    assert [line.split("\t")[2] for line in stream.getvalue().splitlines()] == ["nan", "inf"]


class Recorder(io.StringIO):
    def __init__(self):
        super().__init__()
        self.flushed = []

    def flush(self):
        self.flushed.append(self.getvalue())


def test_each_line_is_flushed_and_announced():
    stream, calls = Recorder(), []
    out = Console(stream, before_line=lambda: calls.append(stream.getvalue()))
    out.phase(Phase.WARM_UP)
    out.phase(Phase.WARM_UP_DONE)
    assert stream.flushed == ["Running warm up\n", "Running warm up\nDone warm up\n"]
    assert calls == ["", "Running warm up\n"]


def test_path_that_the_encoding_lacks_is_escaped():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Console(stream).phase(Phase.CHECKPOINT_NOT_FOUND, "/zug/äöü")
    assert stream.buffer.getvalue() == b"Checkpoint not found in /zug/\\xe4\\xf6\\xfc\n"


WRITER = """
import sys
from cnnbench.run.driver.console import Console, Phase
out = Console()
for _ in range(2000):
    out.phase(Phase.DONE)
print("still running", file=sys.stderr)
"""


def test_reader_that_goes_away_does_not_end_the_run():
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert errors == b"still running\n"
    assert process.wait() == 0
