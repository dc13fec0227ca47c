"""Standard output against captured runs of tf_cnn_benchmarks, byte by byte.

Tests cnnbench/run/driver/describe.py.
"""

import contextlib
import functools
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from covering import slow_if
from short_runs import TINY

from cnnbench import BenchmarkCNN
from cnnbench.base.stats import Speed
from cnnbench.base.values import Duration
from cnnbench.errors import BenchmarkError
from cnnbench.flags import Params
from cnnbench.plan import make_plan
from cnnbench.run.driver import console, describe
from cnnbench.run.driver.console import Console, DisplayInterval
from cnnbench.run.runtime.devices import Devices

pytestmark = pytest.mark.usefixtures("quick_start")

GOLDEN = Path(__file__).parents[2] / "golden"
CAPTURED = {
    "model": "trivial",
    "data_name": "imagenet",
    "batch_size": 8,
    "num_batches": 20,
    "init_learning_rate": 1e-5,
}
# tf_cnn_benchmarks counts timed steps: it evaluates every 10, after 2 of warm-up.
DURING = {"eval_during_training_at_specified_steps": (12,), "num_eval_batches": 10}
RUNS = {
    "training": {},
    "replicated_accuracy": {
        **{"num_gpus": 2, "variable_update": "replicated", "all_reduce_spec": "pscpu"},
        "print_training_accuracy": True,
    },
    "staged_base_loss": {"staged_vars": True, "loss_type_to_report": "base_loss"},
    "forward_only": {"forward_only": True},
    "evaluation_without_checkpoint": {"eval": True},
    "training_and_evaluation": DURING,
    "evaluation": {"eval": True},
    "training_stopped": {**DURING, "stop_at": "top_1:0"},
}
SLOW = ("replicated_accuracy", "staged_base_loss", "forward_only", "training_stopped")
"""Runs of the whole suite alone."""
NOT_YET = {"batch_group", "worker", "parameter_server", "single_session"}
"""Captured runs in modes that cnnbench does not have."""


def without_figures(text):
    """Replaces measured figures, which have decimals; steps and numbers of examples stay."""
    return re.sub(r"-?\d+\.(\d+)", lambda found: "#." + "#" * len(found[1]), text)


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """printed(NAME): standard output of a run; an evaluation is of a training with evaluations."""
    empty, folder = (tmp_path_factory.mktemp(name) for name in ("empty", "trained"))
    places = {"evaluation_without_checkpoint": empty}
    places |= dict.fromkeys(("training_and_evaluation", "evaluation"), folder)

    @functools.cache
    def run(name):
        if name == "evaluation":
            run("training_and_evaluation")
        place = str(places.get(name, ""))
        train_dir = {"train_dir": place} if place else {}
        params = Params.from_dict({**TINY, **CAPTURED, **RUNS[name], **train_dir})
        stream = io.StringIO()
        with contextlib.suppress(BenchmarkError):  # for lack of a checkpoint
            BenchmarkCNN(params, console=Console(stream)).run()
        return stream.getvalue().replace(place, "/train") if place else stream.getvalue()

    return run


def test_a_run_from_python_prints_nothing(capfd):
    BenchmarkCNN(Params.from_dict({**TINY, "num_batches": 2, "num_warmup_batches": 0})).run()
    out, err = capfd.readouterr()
    assert out == ""
    assert "cnnbench: " not in err


@pytest.mark.parametrize("name", slow_if(SLOW, RUNS))
def test_output_equals_the_captured_run(name, printed):
    captured = (GOLDEN / f"{name}.txt").read_text()
    # The staged run had --rewriter_config, which has no meaning any more.
    expected = re.sub("RewriterConfig: .*\n", "", captured)
    assert without_figures(printed(name)) == without_figures(expected)


def test_every_captured_run_is_made():
    assert RUNS.keys() | NOT_YET == {p.stem for p in GOLDEN.glob("*.txt")}


def header(kind="cpu", numbers=(), version="2.21.0", **flags):
    """The header of a run on devices of a kind; `numbers` are those of its own."""
    own = {"model": "trivial", "batch_size": 8, "num_batches": 20, "device": kind, **flags}
    plan = make_plan(Params.from_dict(own))
    own = numbers or tuple(range(plan.params.num_gpus))
    devices = Devices(
        job=plan.place.job.with_devices(kind), numbers=own, intra_threads=0, inter_threads=0
    )
    return describe.header_lines(plan, devices, version, kind, plan.to_json())


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
    for loss in (float("nan"), float("inf")):
        Console(stream).row(1, Speed(1.0, 0.0, 0.0), loss)
    assert [line.split("\t")[2] for line in stream.getvalue().splitlines()] == ["nan", "inf"]


class Recorder(io.StringIO):
    def __init__(self):
        super().__init__()
        self.flushed = []

    def flush(self):
        self.flushed.append(self.getvalue())


def test_each_line_is_flushed():
    stream = Recorder()
    out = Console(stream)
    out.lines("Running warm up")
    out.lines("Done warm up")
    assert stream.flushed == ["Running warm up\n", "Running warm up\nDone warm up\n"]


def test_path_that_the_encoding_lacks_is_escaped():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Console(stream).lines("Checkpoint not found in /zug/äöü")
    assert stream.buffer.getvalue() == b"Checkpoint not found in /zug/\\xe4\\xf6\\xfc\n"


WRITER = """
import sys
from cnnbench.run.driver.console import Console, DisplayInterval
out = Console()
for _ in range(2000):
    out.lines("Done with training")
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


def test_lines_are_due_after_some_steps_or_some_time(monkeypatch):
    now = iter([0.0, 9.9, 10.0, 19.9, 25.0, 25.0])
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=lambda: next(now)))
    timed = DisplayInterval(Duration.parse("10s"))
    assert [timed.advance_if_due(step) for step in (1, 2, 3, 4)] == [False, True, False, True]
    counted = DisplayInterval(2)
    assert [counted.advance_if_due(step) for step in (1, 2, 3, 4)] == [False, True, False, True]


def test_a_run_with_lines_by_time_prints_and_records_it(call, tmp_path):
    out = call(**TINY, display_every="2h", result_json=tmp_path / "r.json").out
    assert re.findall(r"^(\d+)\timages/sec", out, re.MULTILINE) == ["1"]
    record = json.loads((tmp_path / "r.json").read_text())
    assert record["config"]["display_every"] == "2h"
