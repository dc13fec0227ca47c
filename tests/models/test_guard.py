"""Mistakes in the methods of a plug-in's model: a line each, with its place."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import tensorflow as tf

from cnnbench.cli import main
from cnnbench.errors import BenchmarkError, FlagError, UsageError
from cnnbench.models import declare, get_model, load_plugin, register_model

PLUGIN = """
from cnnbench.models import LearningRateSpec, Model, register_model

class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")

class Stop(BaseException):
    pass

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
COLUMN = "must return a float32 tensor [n], a value per example"


@pytest.mark.parametrize(
    ("head", "body", "told"),
    [
        (LOSS, "return 1 / 0", "Probe.loss() raises ZeroDivisionError: division by zero"),
        (LOSS, "raise Mute", "Probe.loss() raises Mute: (its __str__ raises RuntimeError)"),
        (LOSS, "raise Stop('now')", "Probe.loss() raises Stop: now"),
        (LOSS, "raise SystemExit(1)", "Probe.loss() raises SystemExit: 1"),
        (LOSS, "return None", f"Probe.loss() {COLUMN}, not None"),
        (LOSS, "return 'text'", f"Probe.loss() {COLUMN}, not 'text'"),
        (LOSS, "return outputs", f"Probe.loss() {COLUMN}, not a float32 tensor [3, 1001]"),
        (LOSS, "return outputs[:2, 0]", f"Probe.loss() {COLUMN}, not a float32 tensor [2]"),
        (LOSS, "return labels", f"Probe.loss() {COLUMN}, not a int64 tensor [3]"),
        (METRICS, "return None", "must return a mapping of metrics by name, not None"),
        (METRICS, "return {'n': outputs[:, 0]}", "that metric_names has, m; it returns n"),
        (METRICS, "return {'m': 'text'}", f"Probe.metrics() {COLUMN}, for m, not 'text'"),
        (METRICS, "return {'m': outputs}", f"Probe.metrics() {COLUMN}, for m, not a float32"),
        (ROWS, "return [1]", "Probe.host_rows() must return a mapping of tensors by name"),
        (ROWS, "return {'r': outputs[:2]}", "a row per example, for r, not a float32 tensor [2,"),
        (ROWS, "return {'r': 3}", "a row per example, for r, not 3"),
        (HOST, "return None", "Probe.host_metrics() must return a mapping of numbers by name"),
        (HOST, "return {'m': 'text'}", "Probe.host_metrics() must return a number for m, not 't"),
        (HOST, "return {'m': None}", "Probe.host_metrics() must return a number for m, not None"),
        (HOST, "return {'\\x1b[31m': 1}", r"by printable characters, not '\x1b[31m'"),
        (HOST, "self.fails()", "Probe.host_metrics() raises FileNotFoundError: [Errno 2] No"),
        (BUILD, "return None", "Probe.build() must return the outputs of the network, not None"),
        (BUILD, "raise Mute", "Probe.build() raises Mute: (its __str__"),
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
    with pytest.raises((UsageError, BenchmarkError)) as caught:
        call()
    # What has been measured before host_metrics is called is no wrong use.
    assert isinstance(caught.value, BenchmarkError if head == HOST else UsageError)
    message = str(caught.value)
    assert message.startswith("--model_plugin=")
    assert "own.py: Probe." in message
    assert told in message
    assert "\n" not in message


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
    with pytest.raises(error):
        probe(LOSS, body).loss(*TOLD)


def test_what_is_right_passes(probe):
    model = probe(LOSS, "return super().loss(outputs, labels)")
    assert model.loss(*TOLD).shape == [3]
    assert set(model.metrics(*TOLD)) == {"top_1", "top_5"}
    assert not model.has_softmax_loss()
    unknown = tf.TensorSpec(None, tf.float32)
    traced = tf.function(lambda x: model.loss(tf.ensure_shape(x, [None, 1001]), TOLD[1]))
    assert traced.get_concrete_function(unknown)


def test_a_loss_of_none_ends_a_run_with_2_and_one_line(probe, capsys, tmp_path, quick_start):
    probe(LOSS, "return None")
    flags = ("--model=probe", "--device=cpu", "--num_batches=1", "--num_warmup_batches=0")
    assert main([f"--model_plugin={tmp_path / 'own.py'}", *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert line == (
        f"cnnbench: error: --model_plugin={tmp_path / 'own.py'}: Probe.loss() {COLUMN}, not None"
    )


@pytest.mark.usefixtures("own_registry")
def test_a_factory_that_ends_the_program_is_named():
    register_model("own", "imagenet", lambda: sys.exit(1))
    with pytest.raises(FlagError, match="--model=own: SystemExit: 1"):
        get_model("own", "imagenet")
