"""Convolutions that TensorFlow may compute wrongly in 16 bits are named."""

from __future__ import annotations

import pytest

from cnnbench import BenchmarkCNN, Params
from cnnbench.errors import NonFiniteLossError
from cnnbench.models import model
from cnnbench.run.runtime import tensorflow as runtime

PLUGIN = """
from cnnbench.models import LearningRateSpec, Model, register_model

class Tiny(Model):
    name, dataset, image_size, batch_size = "tiny_images", "imagenet", 4, 4
    learning_rate = LearningRateSpec({rate})

    def build(self, net, images):
        x = net.conv(net.conv(images, 4, 3, 2), 4, 3, 2)
        return net.logits(net.flatten(net.conv(x, 4, 3, 2)))

register_model("tiny_images", "imagenet", Tiny)
"""

pytestmark = pytest.mark.usefixtures("quick_start", "forgotten_plugin")


@pytest.fixture
def forgotten_plugin():
    yield
    del model.MODELS["imagenet", "tiny_images"]


def benchmark(tmp_path, monkeypatch, rate=0.01, **flags):
    """A run of a network whose last two convolutions have images of at most 2 x 2 pixels."""
    monkeypatch.setattr(runtime, "convolution_kernels", lambda host: "onednn-avx512")
    path = tmp_path / "plugin.py"
    path.write_text(PLUGIN.format(rate=rate))
    given = {"plugin": str(path), "model": "tiny_images", "device": "cpu", "num_batches": 2}
    return BenchmarkCNN(Params.from_dict({**given, "precision": "bf16", **flags}))


@pytest.mark.parametrize(
    ("flags", "layers"),
    [
        ({"conv_gradients": "library"}, ("conv1", "conv2")),
        ({"conv_gradients": "auto"}, ()),
        ({"conv_gradients": "library", "precision": "fp32"}, ()),
    ],
)
def test_layers_are_named_once(tmp_path, monkeypatch, flags, layers):
    step = benchmark(tmp_path, monkeypatch, num_gpus=2, **flags).build().step
    assert step.doubtful_layers == layers
    assert [name for name in layers if f"gradients of {name} " in "".join(step.notices)] == [
        *layers[:1]
    ]


@pytest.mark.parametrize(
    ("flags", "advice"),
    [
        ({"conv_gradients": "library"}, "wrong gradients of conv1 in 16 bits; use --conv_grad"),
        ({"conv_gradients": "auto"}, "; lower --init_learning_rate, or pass"),
    ],
)
def test_the_learning_rate_is_blamed_only_without_such_layers(tmp_path, monkeypatch, flags, advice):
    with pytest.raises(NonFiniteLossError) as caught:
        benchmark(tmp_path, monkeypatch, rate=1e38, **flags).run()
    assert advice in str(caught.value)
