"""Convolutions that TensorFlow may compute wrongly in 16 bits are avoided, or named.

Tests cnnbench/run/runtime/convolutions.py.
"""

from __future__ import annotations

import pytest
import tensorflow as tf
from covering import slow_if

from cnnbench import BenchmarkCNN, Params
from cnnbench.errors import NonFiniteLossError
from cnnbench.models import registry
from cnnbench.run.runtime import convolutions

PLUGIN = """
from cnnbench.models import LearningRateSpec, Model, register_model

class Tiny(Model):
    name, dataset, image_size, batch_size = "tiny_images", "imagenet", 4, 4
    learning_rate = LearningRateSpec(RATE)

    def build(self, net, images):
        x = net.conv(net.conv(images, 4, 3, 2), 4, 3, 2)
        return net.logits(net.flatten(net.conv(x, 4, 3, 2)))

register_model("tiny_images", "imagenet", Tiny)
"""

KERAS = """
import keras
from cnnbench.models import register_keras_model

def tiny():
    layers = [keras.layers.LAYER, strides=2, padding="same") for _ in range(2)]
    ends = [keras.layers.Flatten(), keras.layers.Dense(10)]
    return keras.Sequential([keras.Input((4, 4, 3)), keras.layers.Conv2D(4, 1), *layers, *ends])

register_keras_model("tiny_images", tiny, dataset="imagenet")
"""

pytestmark = pytest.mark.usefixtures("quick_start", "forgotten_plugin")


@pytest.fixture
def forgotten_plugin():
    yield
    del registry.MODELS["imagenet", "tiny_images"]


def benchmark(tmp_path, monkeypatch, rate=0.01, code=PLUGIN, **flags):
    """A run of a network whose last two convolutions have results of one pixel."""
    monkeypatch.setattr(convolutions, "convolution_kernels", lambda host: "onednn-avx512")
    path = tmp_path / "plugin.py"
    path.write_text(code.replace("RATE", str(rate)))
    given = {"plugin": str(path), "model": "tiny_images", "device": "cpu", "num_batches": 2}
    given |= {"precision": "bf16", "num_warmup_batches": 0, **flags}
    return BenchmarkCNN(Params.from_dict(given))


@pytest.mark.parametrize(
    ("flags", "layer"),
    slow_if(
        lambda case: case[0] not in ({"conv_gradients": "library"}, {"forward_only": True}),
        [
            ({"conv_gradients": "library"}, "conv1"),
            ({"conv_gradients": "auto"}, ""),
            ({"conv_gradients": "library", "precision": "fp32"}, ""),
            ({"forward_only": True}, ""),
        ],
    ),
)
def test_the_first_layer_is_named_once(tmp_path, monkeypatch, flags, layer):
    step = benchmark(tmp_path, monkeypatch, num_gpus=2, **flags).build().step
    named = [notice for notice in step.notices if "wrongly" in notice]
    assert named == [step.doubt] * bool(layer)
    if layer:
        assert f"may compute {layer} wrongly in 16 bits" in step.doubt
        assert step.doubt.endswith("use --conv_gradients=auto")


@pytest.mark.slow
@pytest.mark.parametrize("layer", ["DepthwiseConv2D(3", "Conv2D(4, 3"])
def test_auto_computes_layers_of_keras_in_bfloat16_as_in_float32(tmp_path, monkeypatch, layer):
    code = KERAS.replace("LAYER", layer)
    runs = [
        benchmark(tmp_path, monkeypatch, code=code, precision=precision)
        for precision in ("bf16", "fp32")
    ]
    found = [run.run().losses for run in runs]
    assert found[0] == pytest.approx(found[1], rel=0.03)


@pytest.mark.slow
def test_layers_of_keras_are_named_only_if_keras_computes_them(tmp_path, monkeypatch):
    code = KERAS.replace("LAYER", "DepthwiseConv2D(3")
    assert benchmark(tmp_path, monkeypatch, code=code).build().step.doubt == ""
    step = benchmark(tmp_path, monkeypatch, code=code, keras_layers="own").build().step
    assert "conv2d" in step.doubt
    assert step.doubt.endswith("use --precision=fp32")


@pytest.mark.slow
def test_auto_trains_tiny_images_in_bfloat16_as_in_float32(tmp_path, monkeypatch):
    found = [
        benchmark(tmp_path, monkeypatch, precision=precision, num_batches=8).run().losses
        for precision in ("bf16", "fp32")
    ]
    assert found[0] == pytest.approx(found[1], rel=0.03)


def test_an_export_contains_no_layer_that_tensorflow_may_compute_wrongly(tmp_path, monkeypatch):
    benchmark(tmp_path, monkeypatch, export_dir=str(tmp_path / "export")).run()
    saved = tf.saved_model.load(str(tmp_path / "export")).signatures["serving_default"]
    functions = saved.graph.as_graph_def().library.function
    types = [node.op for function in functions for node in function.node_def]
    # The results of the other two convolutions are one pixel wide.
    assert types.count("Conv2D") == 1


def test_the_learning_rate_is_not_blamed_beside_such_a_layer(tmp_path, monkeypatch):
    with pytest.raises(NonFiniteLossError) as caught:
        benchmark(tmp_path, monkeypatch, rate=1e38, conv_gradients="library").run()
    assert "conv1" in str(caught.value)
    assert "--init_learning_rate" not in str(caught.value)
