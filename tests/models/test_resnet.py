"""All ResNets against a reference, and the sizes of the official ones.

test_keras_applications.py has one too; test_networks.py has the sizes of the others.

Tests models/networks/resnet.py.
"""

from __future__ import annotations

import pytest
import tensorflow as tf
from covering import slow_if
from residual_networks import ResNet

from cnnbench.models import declare, get_model


class ForCifar10(ResNet):
    """The networks for small images."""

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


class VersionD(ResNet):
    """With three convolutions in the stem, and pooled shortcuts."""

    def stem(self, images):
        x = images
        for i, stride in enumerate((2, 1, 1)):
            x = tf.nn.relu(self.norm(self.conv(x, f"conv{i}", stride), f"batchnorm{i}"))
        return tf.nn.max_pool2d(x, 3, 2, "SAME")

    def shortcut(self, x, active, at, stride, project):
        pooled = tf.nn.avg_pool2d(x, stride, stride, "SAME")
        return super().shortcut(pooled, pooled, at, 1, project)


FEW = (2, 2, 1, 1)  # blocks
V2 = {"preactivation": True, "scale": False}
OFFICIAL_V2 = {"preactivation": True, "norms_stem": False}
CIFAR10 = {"scale": False, "projects": (False, False)}


@pytest.mark.parametrize(
    ("name", "strides", "options"),
    slow_if(
        lambda case: case[0] not in ("resnet18", "resnet50_v1.5", "resnet20_v2"),
        [
            ("resnet18", (2, 1), {"projects": (False, True)}),
            ("resnet50", (2, 1, 1), {}),
            ("resnet50_v1.5", (1, 2, 1), {"training": True}),
            ("resnet50_v2", (2, 1, 1), V2),
            ("resnet50_v2", (2, 1, 1), {**V2, "training": True}),
            ("resnet50_d", (1, 2, 1), {"training": True}),
            ("official_resnet18", (2, 1), {}),
            ("official_resnet18_v2", (2, 1), OFFICIAL_V2),
            ("official_resnet50", (1, 2, 1), {}),
            ("official_resnet50_v2", (1, 2, 1), OFFICIAL_V2),
            ("resnet20", (2, 1), CIFAR10),
            ("resnet20_v2", (2, 1), {**CIFAR10, "preactivation": True}),
        ],
    ),
)
def test_it_equals_the_reference(name, strides, options, check_logits):
    small = name.startswith("resnet20")
    model = get_model(name, "cifar10" if small else "imagenet")
    if not small:
        # Odd and even extents below it: 20, 10, 5, 3, 2.
        model.image_size, model.blocks = 40, FEW
    reference = ForCifar10 if small else VersionD if name.endswith("_d") else ResNet
    check_logits(
        model,
        lambda values: reference(values, model.blocks, strides, **options),
        count=4,
        training=options.get("training", False),
    )


# torchvision's for 1000 classes; timm's for 200. The official stage of 64 channels has a
# projection even where basic blocks need none.
PUBLISHED = {
    **{18: 11_689_512 + 64 * 64 + 2 * 64, 34: 21_797_672 + 64 * 64 + 2 * 64},
    **{50: 25_557_032, 101: 44_549_160, 152: 60_192_808, 200: 64_673_832},
}


@pytest.mark.parametrize("depth", PUBLISHED)
def test_sizes_of_official_networks(depth):
    last = 512 if depth < 50 else 2048
    expected = PUBLISHED[depth] + last + 1  # the class "background"
    assert declare(get_model(f"official_resnet{depth}", "imagenet"), 1001).parameters == expected
    # v2 has a norm before each convolution instead of after it. Along the shortcuts they pair
    # off but for those of the four projections (scale and offset of 15/8 of the last width).
    v2 = declare(get_model(f"official_resnet{depth}_v2", "imagenet"), 1001)
    assert v2.parameters == expected - 2 * last * 15 // 8
    assert v2.parameters == v2.trainable_parameters


def test_batch_sizes_of_official_networks():
    sizes = [get_model(f"official_resnet{d}", "imagenet").batch_size for d in PUBLISHED]
    assert sizes == [32, 32, 128, 32, 32, 32]
