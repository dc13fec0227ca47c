"""Which layers correspond to each other, for single layers by hand."""

from __future__ import annotations

import dataclasses

import pytest
from step_profiles import CONV, Profiles, Row

from cnnbench.judge.explain.layers import Alignment, layers_of
from cnnbench.records.profiles import (
    FORWARD,
    OUTSIDE,
    REST,
    TO_INPUT,
    TO_KERNEL,
    UPDATE,
    ProfiledLayer,
    StepPartKey,
)


def layer(name, kind=CONV, shape=(3, 3, 8, 8), flops=10, parameters=None):
    size = shape[-1] if parameters is None else parameters
    return ProfiledLayer(name=name, kind=kind, shapes=(shape,), parameters=size, flops=flops)


def pairs(base, new):
    found = Alignment.of(base, new)
    return [(a.name, b.name) for a, b in found.pairs]


def names(layers):
    return [one.name for one in layers]


WIDE = (3, 3, 8, 16)


def test_a_changed_layer_keeps_its_place():
    base = [layer("a"), layer("b"), layer("c")]
    new = [layer("a"), layer("b", shape=WIDE), layer("c")]
    assert pairs(base, new) == [("a", "a"), ("b", "b"), ("c", "c")]
    # An equal layer is a better counterpart than one of another shape.
    assert pairs([layer("x")], [layer("y", shape=WIDE), layer("z")]) == [("x", "z")]
    assert pairs([layer("y", shape=WIDE), layer("z")], [layer("x")]) == [("z", "x")]


@pytest.mark.parametrize(
    ("candidates", "best"),
    [
        # Equal FLOPs, equal shapes, shapes that agree more, kinds, classes; at last, the name.
        ([layer("p", flops=20), layer("q")], "q"),
        ([layer("p", shape=(3, 3, 8, 9)), layer("q", flops=20)], "q"),
        ([layer("p", shape=(3, 3, 9, 9)), layer("q", shape=(3, 3, 8, 9))], "q"),
        ([layer("p", "convolution 1x1", (1, 1, 8, 8)), layer("q", shape=(3, 3, 9, 9))], "q"),
        ([layer("p"), layer("x")], "x"),
        ([layer("p", shape=WIDE), layer("x", shape=WIDE)], "x"),
        # A name decides only between equal layers.
        ([layer("x", flops=20), layer("q")], "q"),
    ],
)
def test_the_best_counterpart(candidates, best):
    assert pairs([layer("x")], candidates) == [("x", best)]
    assert pairs([layer("x")], candidates[::-1]) == [("x", best)]


def test_layers_of_other_classes_are_no_counterparts():
    for other in (
        layer("x", "dense", (8, 8)),
        layer("x", "", (8,)),
        layer("x", "depthwise " + CONV),
    ):
        found = Alignment.of([layer("x")], [other])
        assert (found.pairs, found.moved) == ((), ())
        assert (names(found.only_in_a), names(found.only_in_b)) == (["x"], ["x"])
    same_class = layer("y", "convolution 5x5", (5, 5, 8, 8))
    assert pairs([layer("x")], [same_class]) == [("x", "y")]


def test_a_layer_with_a_product_counts_more_than_one_without():
    # In another order, either both norms or the convolution can have their counterparts.
    norm = [layer(f"n{n}", "", (8,)) for n in range(3)]
    conv = layer("c")
    assert pairs([conv, norm[0]], [norm[0], conv]) == [("c", "c")]
    assert pairs([conv, *norm], [*norm, conv]) == [("n0", "n0"), ("n1", "n1"), ("n2", "n2")]


def test_moved_layers():
    a, b, c = layer("a"), layer("b", shape=WIDE), layer("c", shape=(3, 3, 16, 16))
    found = Alignment.of([a, b, c], [c, a, b])
    assert pairs([a, b, c], [c, a, b]) == [("a", "a"), ("b", "b")]
    assert [(one.name, other.name) for one, other in found.moved] == [("c", "c")]
    assert found.only_in_a == found.only_in_b == ()
    assert "1 layer " in found.difference_text()
    # A layer without a product is not moved, but removed and added.
    norm = layer("n", "", (8,))
    found = Alignment.of([a, b, norm], [norm, a, b])
    assert (names(found.only_in_a), names(found.only_in_b)) == (["n"], ["n"])
    # Each layer moves to one place.
    found = Alignment.of([c, a, b], [a, b, c, dataclasses.replace(c, name="d")])
    assert (len(found.moved), names(found.only_in_b)) == (1, ["d"])


@pytest.mark.parametrize(
    ("equal", "alike", "count", "too_different"),
    [
        (0, 0, 10, True),
        (4, 4, 10, True),
        (5, 5, 10, False),
        (4, 7, 10, True),
        (4, 8, 10, False),
        (0, 10, 10, False),
    ],
)
def test_networks_of_other_families(equal, alike, count, too_different):
    base = [layer(f"x{n}", shape=(3, 3, 8, 8 + n)) for n in range(count)]
    new = [
        base[n]
        if n < equal
        else dataclasses.replace(base[n], shapes=((3, 3, 9, 99 + n),))
        if n < alike
        else layer(f"y{n}", "dense", (8, 8))
        for n in range(count)
    ]
    found = Alignment.of(base, new)
    assert found.too_different == too_different
    assert (found.names_in_a == {}) == too_different
    nothing = Alignment.of([layer("n", "", (8,))], new)
    assert not nothing.too_different


def test_sizes_of_both_networks_count():
    # Half of the smaller network is equal; four fifths of the larger one would have to be alike.
    base = [layer(f"x{n}", shape=(3, 3, 8, 8 + n)) for n in range(4)]
    more = [layer(f"y{n}", "dense", (8, 8 + n)) for n in range(20)]
    assert not Alignment.of(base, [*base[:2], *more]).too_different
    assert Alignment.of(base, [base[0], *more]).too_different
    assert Alignment.of([*base[:1], *more], base).too_different


def test_names_of_layers_and_scopes():
    base = [layer("a/b/conv0"), layer("a/b/conv1", shape=WIDE)]
    new = [layer("x/y/conv0"), layer("x/y/conv1", shape=WIDE), layer("a/b/conv0", "dense", (8, 8))]
    found = Alignment.of(base, new).names_in_a
    assert (found["x/y/conv0"], found["x/y/conv1"]) == ("a/b/conv0", "a/b/conv1")
    assert (found["x/y"], found["x"]) == ("a/b", "a")
    # The name of an added layer is not that of another one.
    assert found["a/b/conv0"] == "a/b/conv0 of B"
    assert Alignment.of(base, [*new[:2], layer("z", "dense", (8, 8))]).names_in_a["z"] == "z"


def test_most_layers_decide_about_the_name_of_a_scope():
    base = [layer(f"a{n // 2}/c{n}", shape=(3, 3, 8, 8 + n)) for n in range(3)]
    new = [dataclasses.replace(one, name=f"b/c{n}") for n, one in enumerate(base)]
    assert Alignment.of(base, new).names_in_a["b"] == "a0"


@pytest.mark.parametrize(
    ("base", "new", "words"),
    [
        ([layer("a")], [layer("a"), layer("b")], ["a convolution more", "3x3, after a"]),
        ([layer("a")], [layer("b", "dense", (1, 2)), layer("a")], ["a dense layer more", "before"]),
        ([layer("a"), layer("b"), layer("c")], [layer("a")], ["2 convolutions less", "after a"]),
        ([layer("a")], [layer("a"), layer("n", "", (8,))], ["a layer more (after a)"]),
        # Layers without a product are not told beside those with one.
        (
            [layer("a")],
            [layer("a"), layer("n", "", (8,)), layer("b")],
            ["B has a convolution more (3x3, after a)"],
        ),
        (
            [layer("a"), layer("d", "dense", (8, 8))],
            [layer("a"), layer("b")],
            ["more", " and ", "less"],
        ),
    ],
)
def test_texts_about_layers(base, new, words):
    text = Alignment.of(base, new).difference_text()
    assert [word for word in words if word not in text] == []
    assert Alignment.of(base, base).difference_text() == ""


def test_the_place_of_an_added_layer_has_the_name_that_a_uses():
    base = [layer("a"), layer("c", shape=WIDE)]
    new = [layer("x"), layer("b", "dense", (8, 8)), layer("c", shape=WIDE)]
    assert "after a)" in Alignment.of(base, new).difference_text()


def test_layers_of_a_profile_without_a_list(lenet_runs):
    rows = {
        StepPartKey("conv0", CONV, FORWARD): Row(1.0, 5),
        StepPartKey("conv0", CONV, TO_KERNEL): Row(1.0, 7),
        StepPartKey("conv1", CONV, TO_INPUT): Row(1.0, 7),
        StepPartKey("conv2", CONV, TO_KERNEL): Row(1.0, 9),
        StepPartKey("conv3", CONV, FORWARD): Row(1.0),
        StepPartKey(REST, UPDATE, OUTSIDE): Row(1.0, 7),
        StepPartKey(REST, UPDATE, FORWARD): Row(1.0, 7),
    }
    profile = Profiles(lenet_runs())(rows)
    found = layers_of(profile)
    assert [(one.name, one.kind, one.flops) for one in found] == [
        ("conv0", CONV, 5),
        ("conv2", CONV, 9),
    ]
    assert (found[0].shapes, found[0].parameters) == ((), 0)
    listed = (layer("a"),)
    assert layers_of(dataclasses.replace(profile, layers=listed)) == listed
    assert layers_of(dataclasses.replace(profile, layers=())) == ()


def test_layers_without_shapes_are_equal_if_their_flops_are():
    def bare(name, flops):
        return ProfiledLayer(name=name, kind=CONV, shapes=(), parameters=0, flops=flops)

    base = [bare("a", 1), bare("b", 2), bare("c", 3)]
    assert pairs(base, [bare("x", 2), bare("y", 3)]) == [("b", "x"), ("c", "y")]
