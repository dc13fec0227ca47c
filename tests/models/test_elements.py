"""Features and labels of an example: sizes by name, dtypes, and values in groups."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cnnbench.errors import UsageError
from cnnbench.models.elements import (
    IMAGE,
    IMAGE_CLASSIFICATION,
    LABEL,
    Draw,
    Element,
    elements_of_role,
    group_values,
    positive_size_attribute,
    resolve_sizes,
    values_by_name,
)

BOXES = Element("boxes", (200, 4), "label", draw=Draw.boxes(), rows="num_boxes")


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (Draw.normal(), Draw("normal", 1.0, 0, 1)),
        (Draw.normal(0.5), Draw("normal", 0.5, 0, 1)),
        (Draw.integers(2, "num_classes"), Draw("integers", 1.0, 2, "num_classes")),
        (Draw.uniform(), Draw("uniform", 1.0, 0, 1)),
        (Draw.uniform(-3, 4), Draw("uniform", 1.0, -3, 4)),
        (Draw.constant(7.0), Draw("constant", 7.0, 0, 1)),
        (Draw.boxes(), Draw("boxes", 1.0, 0, 1)),
    ],
)
def test_distributions_are_what_their_makers_say(made, expected):
    assert made == expected


def test_sizes_by_name_are_those_of_the_model():
    model = SimpleNamespace(image_size=8, channels=3)
    image, label, boxes = resolve_sizes((*IMAGE_CLASSIFICATION, BOXES), model, 11)
    assert (image.sizes, label.sizes, boxes.sizes) == ((8, 8, 3), (), (200, 4))
    assert (label.draw.low, label.draw.high) == (0, 11)
    assert image.draw == Draw.normal(0.5)
    assert resolve_sizes((Element("x", (2,), "feature"),), model, 11)[0].draw is None
    assert IMAGE.named_sizes == ("image_size", "image_size", "channels")
    assert (LABEL.named_sizes, BOXES.named_sizes) == (("num_classes",), ())
    assert Element("x", ("length", 2), "feature").named_sizes == ("length",)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0, "size=0 must be at least 1"),
        (-1, "size=-1 must be at least 1"),
        (2.0, "needs an attribute size of type int, got 2.0"),
        (None, "needs an attribute size of type int, got None"),
    ],
)
def test_a_size_is_a_number_above_zero(value, message):
    with pytest.raises(UsageError, match=f"model class SimpleNamespace.*{message}"):
        positive_size_attribute(SimpleNamespace(size=value), "size")
    assert positive_size_attribute(SimpleNamespace(size=1), "size") == 1
    with pytest.raises(UsageError, match="got None"):
        positive_size_attribute(SimpleNamespace(), "size")


@pytest.mark.parametrize(
    ("dtype", "real"),
    [("float32", True), ("bfloat16", True), ("float16", True), ("int64", False), ("bool", False)],
)
def test_real_dtypes(dtype, real):
    assert Element("x", (), "feature", dtype).is_real is real
    assert Element("x", (), "feature").is_real


def test_a_single_element_needs_no_name():
    both = (*IMAGE_CLASSIFICATION, BOXES)
    values = {"image": 1, "label": 2, "boxes": 3}
    assert elements_of_role(both, "label") == (LABEL, BOXES)
    assert group_values(both, "feature", values) == 1
    assert group_values(both, "label", values) == {"label": 2, "boxes": 3}
    assert values_by_name(both, "feature", 1) == {"image": 1}
    assert values_by_name(both, "label", {"label": 2, "boxes": 3}) == {"label": 2, "boxes": 3}
    with pytest.raises(ValueError, match="unpack"):
        values_by_name(both, "label", 2)
