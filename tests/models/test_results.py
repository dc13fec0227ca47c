"""Mistakes in the methods of a plug-in's model: a line each, with its place and frames.

Tests models/model.py.
"""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest
import tensorflow as tf

from cnnbench.base import plugins
from cnnbench.errors import BenchmarkError, ExitCode, FlagError, UsageError
from cnnbench.models import declare, get_model, load_plugin, register_model

PLUGIN = """
from cnnbench.models import LearningRateSpec, Model, register_model

class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")

class Probe(Model):
    name, dataset, image_size, batch_size = "probe", "imagenet", 8, 3
    learning_rate = LearningRateSpec(0.01)

    def build(self, net, images):
        return net.logits(net.flatten(images))

    {head}
        {body}

    def fails(self):
        return open("nowhere")

register_model("probe", "imagenet", Probe)
"""


@pytest.fixture
def probe(tmp_path):
    """A model whose method `head` does `body`; its file is own.py."""

    def make(head, body):
        path = tmp_path / "own.py"
        path.write_text(PLUGIN.format(head=head, body=body))
        load_plugin(str(path))
        return get_model("probe", "imagenet")

    return make


TOLD = tf.zeros([3, 1001]), tf.zeros([3], tf.int64)
BUILD = "def build(self, net, images):"
LOSS = "def loss(self, outputs, labels):"
METRICS = "metric_names = ('m',)\n    def metrics(self, outputs, labels):"
ROWS = "def host_rows(self, features, outputs, labels):"
HOST = "def host_metrics(self, rows):"
ROW = "a tensor [n, ...], a row per example"
COLUMN = "must return a float32 tensor [n], a value per example"


@pytest.mark.parametrize(
    ("head", "body", "told"),
    [
        (LOSS, "return 1 / 0", "Probe.loss(): ZeroDivisionError: division by zero"),
        (LOSS, "raise Mute", "Probe.loss(): Mute: (its __str__ raises RuntimeError)"),
        (LOSS, "raise SystemExit(1)", "Probe.loss(): SystemExit: 1"),
        (LOSS, "return None", f"Probe.loss() {COLUMN}, not None"),
        (LOSS, "return 'text'", f"Probe.loss() {COLUMN}, not 'text'"),
        (LOSS, "return outputs", f"Probe.loss() {COLUMN}, not a float32 tensor [3, 1001]"),
        (LOSS, "return outputs[:2, 0]", f"Probe.loss() {COLUMN}, not a float32 tensor [2]"),
        (LOSS, "return outputs[0, 0]", f"Probe.loss() {COLUMN}, not a float32 tensor []"),
        (LOSS, "return labels", f"Probe.loss() {COLUMN}, not an int64 tensor [3]"),
        (METRICS, "return None", "Probe.metrics() must return a Mapping, not None"),
        (
            METRICS,
            "return {'n': outputs[:, 0]}",
            "by the names in Probe.metric_names, m, not by n",
        ),
        (METRICS, "return {'m': 'text'}", f"for 'm' {COLUMN[12:]}, not 'text'"),
        (METRICS, "return {'m': outputs}", f"for 'm' {COLUMN[12:]}, not a float32"),
        (ROWS, "return [1]", "Probe.host_rows() must return a Mapping, not a list"),
        (
            ROWS,
            "return {'r': outputs[:2]}",
            "for 'r' a tensor [n, ...], a row per example, not a float32 tensor [2,",
        ),
        (ROWS, "return {'r': 3}", f"for 'r' {ROW}, not 3"),
        (HOST, "return {'m': 'text'}", "must return for 'm' a float, not 'text'"),
        (HOST, "return {'m': None}", "must return for 'm' a float, not None"),
        (HOST, "return {'\\x1b[31m': 1}", r"of printable characters, not by '\x1b[31m'"),
        (HOST, "self.fails()", "Probe.fails(): FileNotFoundError: [Errno 2] No"),
        (BUILD, "return None", "Probe.build() must return a result, not None"),
    ],
)
def test_a_mistake_is_one_line_with_file_class_and_method(probe, head, body, told):
    model = probe(head, body)
    call = {
        BUILD: lambda: declare(model, 1001),
        LOSS: lambda: model.loss(*TOLD),
        METRICS: lambda: model.metrics(*TOLD),
        ROWS: lambda: model.host_rows(tf.zeros([3]), *TOLD),
        HOST: lambda: model.host_metrics({"r": np.zeros(3)}),
    }[head]
    with pytest.raises(BenchmarkError) as caught, plugins.reporting_plugin_errors(BenchmarkError):
        call()
    message = str(caught.value)
    assert re.match(r"/.*/own\.py:\d+: Probe\.", message)
    assert told in message
    assert "\n" not in message
    assert all(re.match(r"at /.*/own\.py:\d+: Probe\.", one) for one in caught.value.frames)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("raise KeyboardInterrupt", KeyboardInterrupt),
        ("raise MemoryError", MemoryError),
        (
            "import tensorflow as tf; raise tf.errors.ResourceExhaustedError(None, None, 'full')",
            tf.errors.ResourceExhaustedError,
        ),
        ("from cnnbench.errors import FlagError; raise FlagError('x', 1, 'no')", FlagError),
    ],
)
def test_what_is_no_mistake_passes(probe, body, error):
    with pytest.raises(error), plugins.reporting_plugin_errors(BenchmarkError):
        probe(LOSS, body).loss(*TOLD)


def test_what_is_right_passes(probe):
    model = probe(LOSS, "return super().loss(outputs, labels)")
    assert model.loss(*TOLD).shape == [3]
    assert set(model.metrics(*TOLD)) == {"top_1", "top_5"}
    assert not model.has_softmax_loss()
    unknown = tf.TensorSpec(None, tf.float32)

    @tf.function(autograph=False)
    def traced(outputs):
        return model.loss(tf.ensure_shape(outputs, [None, 1001]), TOLD[1])

    assert traced.get_concrete_function(unknown)


PREPROCESS = "def preprocess(self, example, seed, *, training):"
FLAGS = ("--model=probe", "--device=cpu", "--num_batches=1", "--num_warmup_batches=0")


@pytest.mark.parametrize(
    ("head", "body", "told", "frames"),
    [
        (PREPROCESS, "return None", "must return a Mapping, not None", []),
        (PREPROCESS, "return {}", "must return values of all elements, not without image", []),
        (LOSS, "self.fails()", ": FileNotFoundError: [Errno 2] No", ["loss", "fails"]),
        (LOSS, "raise GeneratorExit", ": GeneratorExit", ["loss"]),
        (BUILD, "return net.conv(images, 3, 3, padding='x')", ": padding", ["build"]),
        (LOSS, "import os; os.chdir('/'); return None", f"{COLUMN}, not None", []),
    ],
)
def test_a_mistake_in_a_run_is_one_line_with_frames_below(
    probe, head, body, told, frames, call, tmp_path, quick_start, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    probe(head, body)
    words = ("--plugin=own.py", "--result_json=r.json", *FLAGS)
    err = call(*words, code=ExitCode.USAGE).err.splitlines()
    (at,) = (i for i, line in enumerate(err) if "error" in line)
    assert err[at].startswith(f"cnnbench: error: {tmp_path}/own.py:")
    assert told in err[at]
    below = [f"cnnbench: at {tmp_path}/own.py:" for _ in frames]
    assert [line.partition("own.py:")[0] + "own.py:" for line in err[at + 1 :]] == below
    for line, frame in zip(err[at + 1 :], frames, strict=True):
        assert f": Probe.{frame}(): " in line
    assert not (tmp_path / "r.json").exists()


@pytest.mark.usefixtures("own_registry")
def test_a_factory_that_ends_the_program_is_named():
    register_model("own", "imagenet", lambda: sys.exit(1))
    with pytest.raises(UsageError, match="--model=own: SystemExit: 1"):
        get_model("own", "imagenet")
