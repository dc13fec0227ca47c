from __future__ import annotations

import pytest
import tensorflow as tf
from residual_networks import ResNet

from cnnbench.models import declare, get_model


class Reference(ResNet):
    """ResNet-20, from the papers."""

    def conv(self, x, name, stride=1):
        # SAME of an even image at stride 2 has its one zero after, at stride 1 one each side.
        before = 0 if stride == 2 else 1
        x = tf.pad(x, [[0, 0], [before, 1], [before, 1], [0, 0]])
        return tf.nn.conv2d(x, self.get(f"{name}/kernel"), stride, "VALID")

    def stem(self, images):
        x = self.norm(self.conv(images, "conv0"), "batchnorm0")
        return tf.nn.relu(x) if self.preactivation else x

    def shortcut(self, x, active, at, stride, project):
        if stride == 1:
            return x
        half = x.shape[3] // 2
        return tf.pad(x[:, ::2, ::2], [[0, 0], [0, 0], [0, 0], [half, half]])


@pytest.mark.parametrize("name", ["resnet20", "resnet20_v2"])
def test_resnet20_equals_the_reference(name, check_logits):
    options = {"preactivation": name.endswith("v2"), "scale": False, "projects": (False, False)}
    check_logits(
        get_model(name, "cifar10"),
        lambda values: Reference(values, (3, 3, 3), (2, 1), **options),
        count=3,
    )


def test_flops_by_hand():
    stem = 32 * 32 * 9 * 3 * 16
    stage = 32 * 32 * 9 * 16 * 16  # of one convolution; the same for 16^2 x 32^2 and 8^2 x 64^2
    first = stage // 2  # the strided one takes in half as many channels as it puts out
    macs = stem + 6 * stage + 2 * (5 * stage + first) + 64 * 11
    spec = declare(get_model("resnet20", "cifar10"), 11)
    assert spec.forward_flops_per_image == 2 * macs
    assert spec.training_flops_per_image == 2 * (3 * macs - stem)
