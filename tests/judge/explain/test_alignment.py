"""Layers of edited networks are aligned as a diff aligns lines.

Tests cnnbench/judge/explain/layers.py.
"""

from __future__ import annotations

import math

import pytest

from cnnbench.judge.explain.layers import Alignment
from cnnbench.models import Model, get_model
from cnnbench.models.declaration import declare, scope_flops
from cnnbench.models.learning_rate import LearningRateSpec
from cnnbench.records.profiles import (
    ProfiledLayer,
)


def layers(model, classes=10):
    """The layers of a model as a profile has them."""
    flops = scope_flops(model, classes, training=True)
    shapes = {}
    for one in declare(model, classes).variables:
        if one.trainable:
            shapes.setdefault(one.name.rpartition("/")[0], []).append(one.shape)
    found = []
    for name, those in shapes.items():
        kernel = next((one for one in those if len(one) in (2, 4)), ())
        kind = {4: "convolution", 2: "dense"}.get(len(kernel), "")
        if len(kernel) == 4:
            kind = ("depthwise " if "depthwise" in name else "") + kind
            kind += f" {kernel[0]}x{kernel[1]}"
        found.append(
            ProfiledLayer(
                name=name,
                kind=kind,
                shapes=tuple(those),
                parameters=sum(map(math.prod, those)),
                flops=flops[name].forward,
            )
        )
    return found


def numbered(convs):
    """Convolutions of (filters, kernel, stride); an edit renumbers those behind it."""

    class Edited(Model):
        name = "edited"
        dataset = "cifar10"
        image_size = 32
        batch_size = 4
        learning_rate = LearningRateSpec(0.1)

        def build(self, net, images):
            x = images
            for number, (filters, kernel, stride) in enumerate(convs):
                with net.scope(f"conv_{number}"):
                    x = net.conv(x, filters, kernel, stride, batch_norm=True)
            return net.logits(net.affine(net.flatten(x), 64))

    return layers(Edited())


PLAIN = [(16, 3, 1), (16, 3, 1), (32, 3, 2), (32, 3, 1), (64, 3, 2), (64, 3, 1)]
BASE = numbered(PLAIN)

# The layers of B, and what the text about a layer more or less names; () for no such text.
EDITS = {
    "inserted": ([*PLAIN[:4], (32, 1, 1), *PLAIN[4:]], ("more", "1x1", "conv_3/conv0")),
    "removed": ([*PLAIN[:3], *PLAIN[4:]], ("less", "3x3", "conv_2/conv0")),
    "first inserted": ([(16, 7, 1), *PLAIN], ("more", "7x7", "before")),
    "two inserted": (
        [*PLAIN[:2], (16, 5, 1), (16, 1, 1), *PLAIN[2:]],
        ("2 convolutions more", "5x5, 1x1", "conv_1/conv0"),
    ),
    "wider": ([*PLAIN[:3], (48, 3, 1), *PLAIN[4:]], ()),
    "all wider": ([(2 * filters, *rest) for filters, *rest in PLAIN], ()),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_of_a_numbered_network(edit):
    convs, named = EDITS[edit]
    found = Alignment.of(BASE, numbered(convs))
    assert not found.too_different
    text = found.difference_text()
    assert bool(text) == bool(named)
    assert [word for word in named if word not in text] == []
    if not text:
        return
    # Whatever is equal on both sides has its counterpart, by whatever name.
    equal = [(one.name, other.name) for one, other in found.pairs if one.shapes == other.shapes]
    assert len(equal) == min(len(BASE), len(found.b)) - (edit == "first inserted")
    assert len(set(found.names_in_a.values())) == len(found.names_in_a)


@pytest.mark.parametrize(
    ("base", "new", "more"),
    [("resnet50", "resnet101", 51), ("vgg16", "vgg19", 3)],
)
def test_a_deeper_network_has_all_of_the_other(base, new, more):
    found = Alignment.of(*(layers(get_model(name, "imagenet"), 1000) for name in (base, new)))
    assert not found.too_different
    assert found.only_in_a == ()
    assert len([one for one in found.only_in_b if one.kind]) == more
    assert f"{more} convolutions more" in found.difference_text()


@pytest.mark.parametrize(("base", "new"), [("resnet50", "mobilenet"), ("lenet", "alexnet")])
def test_another_family_is_another_network(base, new):
    found = Alignment.of(*(layers(get_model(name, "imagenet"), 1000) for name in (base, new)))
    assert found.too_different
    assert found.names_in_a == {}
