"""Layers of edited networks are aligned as a diff aligns lines.

Tests cnnbench/judge/explain/layers.py.
"""

from __future__ import annotations

import dataclasses
import math

import pytest
from step_profiles import CONV, Profiles, Row, network

from cnnbench.judge.explain import explain
from cnnbench.judge.explain.layers import Alignment
from cnnbench.models import Model, get_model
from cnnbench.models.declaration import declare, scope_flops
from cnnbench.models.learning_rate import LearningRateSpec
from cnnbench.records.profiles import (
    FORWARD,
    OUTSIDE,
    REST,
    TO_KERNEL,
    UPDATE,
    ProfiledLayer,
    StepPartKey,
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


def network_of(body):
    class Edited(Model):
        name = "edited"
        dataset = "cifar10"
        image_size = 32
        batch_size = 4
        learning_rate = LearningRateSpec(0.1)

        def build(self, net, images):
            return body(net, images)

    return layers(Edited())


def chain(net, x, convs, units=(64,), scopes=None):
    """Convolutions of (filters, kernel, stride), then dense layers."""
    for number, (filters, kernel, stride) in enumerate(convs):
        scope = scopes(number) if scopes else f"conv_{number}"
        with net.scope(scope):
            x = net.conv(x, filters, kernel, stride, batch_norm=True)
    x = net.flatten(x)
    for one in units:
        x = net.affine(x, one)
    return net.logits(x)


PLAIN = [(16, 3, 1), (16, 3, 1), (32, 3, 2), (32, 3, 1), (64, 3, 2), (64, 3, 1)]


def numbered(convs, units=(64,), scopes=None):
    """Convolutions named by their number: an edit renumbers those behind it."""
    return network_of(lambda net, x: chain(net, x, convs, units, scopes))


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
    "swapped": ([*PLAIN[:2], PLAIN[4], PLAIN[5], PLAIN[3], PLAIN[2]], None),
    "wider": ([*PLAIN[:3], (48, 3, 1), *PLAIN[4:]], ()),
    "larger kernel": ([*PLAIN[:3], (32, 5, 1), *PLAIN[4:]], ()),
    "all wider": ([(2 * filters, *rest) for filters, *rest in PLAIN], ()),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_of_a_numbered_network(edit):
    convs, named = EDITS[edit]
    found = Alignment.of(BASE, numbered(convs))
    assert not found.too_different
    if named is None:
        return
    text = found.difference_text()
    assert bool(text) == bool(named)
    assert [word for word in named if word not in text] == []
    if not text:
        return
    # Whatever is equal on both sides has its counterpart, by whatever name.
    equal = [(one.name, other.name) for one, other in found.pairs if one.shapes == other.shapes]
    assert len(equal) == min(len(BASE), len(found.b)) - (edit == "first inserted")
    assert len(set(found.names_in_a.values())) == len(found.names_in_a)


def test_blocks_that_have_swapped_places():
    def body(order):
        def build(net, x):
            x = net.conv(x, 16, 3)
            for number, kernel in enumerate(order):
                with net.scope(f"block{number}"):
                    x = net.conv(net.conv(x, 16, kernel), 16, kernel)
            return net.logits(net.global_avg_pool(x))

        return network_of(build)

    found = Alignment.of(body([3, 3, 5]), body([5, 3, 3]))
    assert found.only_in_a == found.only_in_b == ()
    assert "2 layers" in found.difference_text()
    assert "(block2/conv0)" in found.difference_text()
    assert found.names_in_a["block0/conv0"] == "block2/conv0"
    assert found.names_in_a["block1/conv0"] == "block0/conv0"


def test_renamed_scopes_correspond():
    renamed = numbered(PLAIN, scopes=lambda number: f"part{number // 2}/unit{number % 2}")
    found = Alignment.of(BASE, renamed)
    assert [a.shapes for a, _ in found.pairs] == [b.shapes for _, b in found.pairs]
    assert len(found.pairs) == len(BASE)
    assert found.names_in_a["part1/unit1"] == "conv_3"
    assert found.difference_text() == ""


def test_another_dense_layer():
    found = Alignment.of(BASE, numbered(PLAIN, units=(64, 64)))
    assert [one.kind for one in found.only_in_b] == ["dense"]
    assert "dense layer more" in found.difference_text()


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


@pytest.mark.parametrize(
    ("base", "new"), [("resnet50", "mobilenet"), ("lenet", "alexnet"), ("resnet50", "vgg16")]
)
def test_another_family_is_another_network(base, new):
    found = Alignment.of(*(layers(get_model(name, "imagenet"), 1000) for name in (base, new)))
    assert found.too_different
    assert found.names_in_a == {}


# Explanations of profiles that know their layers ----------------------------------------------

FOUR = [(CONV, number) for number in range(4)]


def plain_layers(kinds):
    return tuple(
        ProfiledLayer(
            name=f"conv{number}",
            kind=kind,
            shapes=((1, 1, 8, 8) if "1x1" in kind else (3, 3, 8 * (1 + size), 8),),
            parameters=64,
            flops=10**9,
        )
        for number, (kind, size) in enumerate(kinds)
    )


def test_an_inserted_layer_is_named_and_those_behind_it_are_not(profiles):
    inserted = [*FOUR[:3], ("convolution 1x1", 0), FOUR[3]]
    rows = {
        part._replace(layer="conv4") if part.layer == "conv3" else part: row
        for part, row in network().items()
    }
    for direction in (FORWARD, TO_KERNEL):
        rows[StepPartKey("conv3", "convolution 1x1", direction)] = Row(3.0, 10**8)
    found = explain(
        profiles.side(layers=plain_layers(FOUR)),
        profiles.side(rows, layers=plain_layers(inserted)),
    )
    (cause,) = found.causes
    assert (cause.kind, cause.place) == ("layers", "conv3 of B")
    assert "(1x1, after conv2)" in cause.text
    assert cause.difference == pytest.approx(6e-3, rel=0.2)
    shown = {(row.layer, row.kind, row.direction): row for row in found.rows}
    assert abs(shown["conv3", CONV, FORWARD].difference) < 1e-3  # conv4 of B


def test_a_slower_layer_of_renamed_scopes_is_named_by_both_names(profiles):
    renamed = tuple(dataclasses.replace(one, name=f"part/{one.name}") for one in plain_layers(FOUR))
    rows = {
        part._replace(layer=f"part/{part.layer}") if part.layer.startswith("conv") else part: (
            row.times(1.7) if part == StepPartKey("conv2", CONV, TO_KERNEL) else row
        )
        for part, row in network().items()
    }
    found = explain(profiles.side(layers=plain_layers(FOUR)), profiles.side(rows, layers=renamed))
    (cause,) = found.causes
    assert (cause.kind, cause.place) == ("kernel", "conv2, gradient of kernels")
    assert "part/conv2 in B" in cause.evidence


def test_another_network_is_compared_by_kind(profiles):
    dense = tuple(
        ProfiledLayer(name=f"affine{n}", kind="dense", shapes=((8, 8),), parameters=64, flops=1)
        for n in range(5)
    )
    rows = {part: row for part, row in network().items() if not part.layer.startswith("conv")}
    rows |= {StepPartKey(one.name, "dense", FORWARD): Row(4.0, 10**8) for one in dense}
    found = explain(profiles.side(layers=plain_layers(FOUR)), profiles.side(rows, layers=dense))
    assert [cause.kind for cause in found.causes] == ["network"]
    assert "5 layers instead of 4" in found.answer
    kinds = [line.partition(":")[0] for line in found.causes[0].evidence]
    assert kinds[0] == CONV
    assert "dense" in kinds


def test_the_update_of_a_wider_layer_belongs_to_the_layer(lenet_runs):
    profiles = Profiles(lenet_runs(), towers=1)
    base = plain_layers(FOUR)
    wider = tuple(
        dataclasses.replace(one, parameters=640, shapes=((3, 3, 24, 80),))
        if one.name == "conv1"
        else one
        for one in base
    )
    update = StepPartKey(REST, UPDATE, OUTSIDE)
    rows = network()
    rows = {
        **{
            part: row.times(1.5, flops=2 * 10**9) if part[:2] == ("conv1", CONV) else row
            for part, row in rows.items()
        },
        update: rows[update].times(9.0, bytes=9000),
    }
    found = explain(profiles.side(layers=base), profiles.side(rows, layers=wider))
    (cause,) = found.causes
    assert (cause.kind, cause.place) == ("layers", "conv1")
    assert cause.difference == pytest.approx(28e-3, rel=0.2)  # 12 of the layer, 16 of the update


def test_a_layer_of_another_shape_is_named_before_the_norm_that_follows(profiles):
    def with_norm(filters):
        convs = plain_layers(FOUR)
        kernel = ProfiledLayer(
            name="conv3",
            kind=CONV,
            shapes=((3, 3, 24, filters),),
            parameters=216 * filters,
            flops=1,
        )
        norm = ProfiledLayer(
            name="norm3", kind="", shapes=((filters,),), parameters=2 * filters, flops=0
        )
        return (*convs[:3], kernel, norm)

    slow = StepPartKey("norm3", "batch norm", FORWARD)
    base = {**network(), slow: Row(4.0, operations={"FusedBatchNormV3 float32": 1})}
    new = {**base, slow: base[slow].times(2.0)}
    sides = profiles.side(base, layers=with_norm(64)), profiles.side(new, layers=with_norm(61))
    first = explain(*sides).causes[0]
    assert (first.kind, first.place) == ("layers", "conv3 and 1 more")
    assert "conv3: 3x3x24x64 in A, 3x3x24x61 in B" in first.evidence
