from __future__ import annotations

import pytest
import tensorflow as tf
from residual_networks import Layers

from cnnbench.models import declare, get_model


class Reference(Layers):
    """ResNet-20, from the papers."""

    def __init__(self, values, version):
        super().__init__(values)
        self.version = version

    def conv(self, x, name, stride=1):
        # SAME of an even image at stride 2 has its one zero after, at stride 1 one each side.
        before = 0 if stride == 2 else 1
        x = tf.pad(x, [[0, 0], [before, 1], [before, 1], [0, 0]])
        return tf.nn.conv2d(x, self.get(f"{name}/kernel"), stride, "VALID")

    @staticmethod
    def shortcut(x, stride):
        if stride == 1:
            return x
        half = x.shape[3] // 2
        return tf.pad(x[:, ::2, ::2], [[0, 0], [0, 0], [0, 0], [half, half]])

    def __call__(self, images):
        conv, norm, v2 = self.conv, self.norm, self.version == "v2"
        x = norm(conv(tf.cast(images, tf.float64), "conv0"), "batchnorm0")
        if v2:
            x = tf.nn.relu(x)
        for stage in range(3):
            for block in range(3):
                at = f"stage{stage}/block{block}"
                stride = 2 if stage > 0 and block == 0 else 1
                if v2:
                    y = tf.nn.relu(norm(x, f"{at}/batchnorm0", scale=False))
                    y = tf.nn.relu(norm(conv(y, f"{at}/conv0", stride), f"{at}/batchnorm1"))
                    x = conv(y, f"{at}/conv1") + self.shortcut(x, stride)
                else:
                    y = tf.nn.relu(norm(conv(x, f"{at}/conv0", stride), f"{at}/batchnorm0"))
                    y = norm(conv(y, f"{at}/conv1"), f"{at}/batchnorm1")
                    x = tf.nn.relu(y + self.shortcut(x, stride))
        return self.logits(tf.nn.relu(norm(x, "batchnorm1", scale=False)) if v2 else x)


@pytest.mark.parametrize(("name", "version"), [("resnet20", "v1"), ("resnet20_v2", "v2")])
def test_resnet20_equals_the_reference(name, version, check_logits):
    check_logits(get_model(name, "cifar10"), lambda values: Reference(values, version), count=3)


def test_flops_by_hand():
    stem = 32 * 32 * 9 * 3 * 16
    stage = 32 * 32 * 9 * 16 * 16  # of one convolution; the same for 16^2 x 32^2 and 8^2 x 64^2
    first = stage // 2  # the strided one takes in half as many channels as it puts out
    macs = stem + 6 * stage + 2 * (5 * stage + first) + 64 * 11
    spec = declare(get_model("resnet20", "cifar10"), 11)
    assert spec.forward_flops_per_image == 2 * macs
    assert spec.training_flops_per_image == 2 * (3 * macs - stem)


def test_learning_rate():
    rate = get_model("resnet110_v2", "cifar10").learning_rate
    assert (rate.base, rate.base_batch, rate.warmup_epochs) == (0.1, None, 0.0)
    assert rate.boundaries_epochs == (82.0, 123.0, 300.0)
    assert [rate.base * f for f in rate.factors] == pytest.approx([0.1, 0.01, 0.001, 0.0002])
