"""All versions of ResNet against a reference; test_keras_applications.py has ResNet-50."""

from __future__ import annotations

import pytest
from residual_networks import ResNet

from cnnbench.models import BatchNorm, declare, get_model

FEW = (2, 2, 1, 1)  # blocks
V2 = {"preactivation": True, "scale": False}


@pytest.mark.parametrize(
    ("name", "strides", "options"),
    [
        ("resnet18", (2, 1), {"projects": (False, True)}),
        ("resnet50", (2, 1, 1), {}),
        ("resnet50_v1.5", (1, 2, 1), {"training": True}),
        ("resnet50_v2", (2, 1, 1), V2),
        ("resnet50_v2", (2, 1, 1), {**V2, "training": True}),
    ],
)
def test_it_equals_the_reference(name, strides, options, check_logits):
    model = get_model(name, "imagenet")
    model.image_size, model.blocks = 64, FEW
    model.batch_norm = BatchNorm(decay=0.9, epsilon=1e-5, scale=True)
    check_logits(
        model,
        lambda values: ResNet(values, FEW, strides, **options),
        count=4,
        training=options.get("training", False),
    )


# Arithmetic -----------------------------------------------------------------------------------


def bottleneck_macs(strided):
    """Multiply-adds of ResNet-50, block by block; ``strided`` names the convolution that is."""
    total = 112 * 112 * 7 * 7 * 3 * 64
    side, depth = 56, 64
    for stage, (width, blocks) in enumerate(zip((64, 128, 256, 512), (3, 4, 6, 3), strict=True)):
        for block in range(blocks):
            out = side // 2 if stage and block == 0 else side
            middle = out if strided == "first" else side
            total += middle**2 * depth * width  # 1 x 1
            total += out**2 * 9 * width * width  # 3 x 3
            total += out**2 * width * 4 * width  # 1 x 1
            if block == 0:
                total += out**2 * depth * 4 * width
            side, depth = out, 4 * width
    return total + 2048 * 1001


@pytest.mark.parametrize(
    ("name", "strided", "giga"),
    [
        ("resnet50", "first", 3.858),
        ("resnet50_v1.5", "middle", 4.089),
        ("resnet50_v2", "first", 3.858),
    ],
)
def test_flops_by_hand(name, strided, giga):
    spec = declare(get_model(name, "imagenet"), 1001)
    macs = bottleneck_macs(strided)
    assert macs == pytest.approx(giga * 1e9, rel=2e-4)
    assert spec.forward_flops_per_image == 2 * macs
    stem = 112 * 112 * 7 * 7 * 3 * 64  # its input is the images: no gradient to compute
    assert spec.training_flops_per_image == 2 * (3 * macs - stem)
