"""Standard output against captured runs of tf_cnn_benchmarks, byte by byte."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from cnnbench.base.stats.descriptive import Speed
from cnnbench.records.parts import Target
from cnnbench.run.driver.console import Console, Phase, header_lines

GOLDEN = Path(__file__).parents[2] / "golden"


def header(**changes):
    values = {
        "tensorflow_version": "2.21.0",
        "model": "trivial",
        "dataset": "imagenet",
        "synthetic": True,
        "mode": "training",
        "global_batch": 8,
        "per_device_batch": 8,
        "num_batches": 20,
        "num_epochs": 20 * 8 / 1_281_167,
        "devices": ("/cpu:0",),
        "data_format": "NHWC",
        "optimizer": "sgd",
        "variable_update": "parameter_server",
    }
    return header_lines(**{**values, **changes})


def rows(out, *values):
    for step, mean, uncertainty, jitter, loss, *accuracies in values:
        out.row(step, Speed(mean, uncertainty, jitter), loss, accuracies)


def timed(out, *values, footer=None, **changes):
    """A run from its header to its last step."""
    out.header(header(**changes))
    out.phase(Phase.GENERATING_TRAINING)
    if changes.get("mode") == "training + evaluation":
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
        global_batch=16,
        devices=("/cpu:0", "/cpu:1"),
        variable_update="replicated",
        all_reduce="pscpu",
    )


def forward_only(out):
    timed(
        out,
        (1, 2786.1, 0, 0, 0.0, 0.375, 0.375),
        (10, 2985.2, 89.2, 230.9, 0.0, 0.375, 0.375),
        (20, 3056.5, 49.6, 144.6, 0.0, 0.375, 0.375),
        footer=2657.67,
        mode="forward only",
    )


def evaluation(out):
    out.header(header(mode="evaluation"))
    out.phase(Phase.GENERATING_EVALUATION)
    out.checkpoint_loaded("/train/model.ckpt-22")
    out.evaluation_row(10, 923.2)
    out.evaluation_row(20, 2795.2)
    out.evaluation_result({"top_1": 1 / 160, "top_5": 0.0562}, 160)
    out.footer(1386.82)


def evaluation_without_checkpoint(out):
    out.header(header(mode="evaluation"))
    out.phase(Phase.GENERATING_EVALUATION)
    out.checkpoint_not_found("/train")


def training_and_evaluation(out):
    first = (1, 659.3, 0, 0, 13.321), (10, 631.4, 5.1, 19.8, 13.321)
    timed(out, *first, mode="training + evaluation")
    out.running_evaluation(12)
    out.evaluation_row(10, 1945.1)
    out.evaluation_result({"top_1": 0.0, "top_5": 0.0125}, 80)
    out.phase(Phase.RESUMING)
    rows(out, (20, 629.7, 4.7, 21.9, 13.321))
    out.phase(Phase.DONE)
    out.running_final_evaluation(22)
    out.evaluation_row(10, 2917.8)
    out.evaluation_result({"top_1": 0.0, "top_5": 0.0125}, 80)


def training_stopped(out):
    first = (1, 623.4, 0, 0, 13.622), (10, 679.8, 11.6, 26.9, 13.621)
    timed(out, *first, mode="training + evaluation")
    out.running_evaluation(12)
    out.evaluation_row(10, 1578.9)
    out.evaluation_result({"top_1": 0.0, "top_5": 0.0125}, 80)
    out.stopping(Target(metric="top_1", value=-1.0), "accuracy")
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


def test_real_data_carries_no_suffix():
    assert "Dataset:     cifar10" in header(dataset="cifar10", synthetic=False)


def test_development_versions_of_tensorflow_print_major_and_minor():
    lines = header(tensorflow_version="2.22.0-dev20260501")
    assert lines[0] == "TensorFlow:  2.22"


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
    Console(stream).checkpoint_not_found("/zug/äöü")
    assert stream.buffer.getvalue() == b"Checkpoint not found in /zug/\\xe4\\xf6\\xfc\n"


WRITER = """
import sys
from cnnbench.records.parts import Target
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
