"""RegNetY: stages as published, and a block against its definition.

Tests models/networks/regnet.py.
"""

from __future__ import annotations

import pytest
import tensorflow as tf
from residual_networks import Layers

from cnnbench.models import get_model
from cnnbench.models.networks.regnet import VARIANTS, stage_depths_and_widths


# Blocks and widths of each stage: Radosavovic et al., table 10.
@pytest.mark.parametrize(
    ("variant", "blocks", "widths"),
    [
        ("400mf", (1, 3, 6, 6), (48, 104, 208, 440)),
        ("800mf", (1, 3, 8, 2), (64, 128, 320, 768)),
        ("1.6gf", (2, 6, 17, 2), (48, 120, 336, 888)),
        ("3.2gf", (2, 5, 13, 1), (72, 216, 576, 1512)),
        ("8gf", (2, 4, 10, 1), (168, 448, 896, 2016)),
        ("16gf", (2, 4, 11, 1), (224, 448, 1232, 3024)),
        ("32gf", (2, 5, 12, 1), (232, 696, 1392, 3712)),
    ],
)
def test_stages_are_those_published(variant, blocks, widths):
    assert stage_depths_and_widths(VARIANTS[variant]) == tuple(zip(blocks, widths, strict=True))


class Reference(Layers):
    """The network written from the paper."""

    def block(self, x, at, width, stride, group):
        project = stride != 1 or x.shape[3] != width
        shortcut, i = x, 0
        if project:
            shortcut, i = self.norm(self.conv(x, f"{at}/conv0", stride), f"{at}/batchnorm0"), 1
        y = tf.nn.relu(self.norm(self.conv(x, f"{at}/conv{i}"), f"{at}/batchnorm{i}"))
        y = self.conv(y, f"{at}/conv{i + 1}", stride, width // group)
        y = tf.nn.relu(self.norm(y, f"{at}/batchnorm{i + 1}"))
        s = tf.reduce_mean(y, [1, 2])
        s = tf.nn.relu(self.affine(s, f"{at}/affine0"))
        assert s.shape[1] == round(x.shape[3] * 0.25)
        s = tf.sigmoid(self.affine(s, f"{at}/affine1"))
        y = self.norm(
            self.conv(y * s[:, None, None], f"{at}/conv{i + 2}"), f"{at}/batchnorm{i + 2}"
        )
        return tf.nn.relu(shortcut + y)

    def __call__(self, images):
        x = self.conv(tf.cast(images, tf.float64), "conv0", 2)
        x = tf.nn.relu(self.norm(x, "batchnorm0"))
        blocks, widths = (1, 3, 6, 6), (48, 104, 208, 440)
        for stage, (count, width) in enumerate(zip(blocks, widths, strict=True)):
            for block in range(count):
                at = f"stage{stage}/block{block}"
                x = self.block(x, at, width, 2 if block == 0 else 1, group=8)
        return self.logits(x)


def test_regnety_400mf_equals_the_reference(check_logits):
    model = get_model("regnety_400mf", "imagenet")
    model.image_size = 40
    check_logits(model, Reference)
