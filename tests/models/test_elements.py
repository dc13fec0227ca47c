from types import SimpleNamespace

import pytest

from cnnbench.errors import UsageError
from cnnbench.models import IMAGE, LABEL, Draw, Element
from cnnbench.models.elements import by_name, grouped, of_role, resolve

USER = Element("user", (), "feature", "int64", Draw.integers(0, "users"))


def test_sizes_come_from_the_model_and_the_data_set():
    model = SimpleNamespace(image_size=24, channels=1, users=9)
    image, label, user = resolve((IMAGE, LABEL, USER), model, 5)
    assert (image.sizes, label.sizes) == ((24, 24, 1), ())
    assert (label.draw.low, label.draw.high) == (0, 5)
    assert (user.draw.low, user.draw.high) == (0, 9)
    assert set(IMAGE.named_sizes) == {"image_size", "channels"}
    assert image.named_sizes == ()


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({}, "class SimpleNamespace needs an attribute users of type int, got None"),
        ({"users": "many"}, "attribute users of type int, got 'many'"),
        ({"users": 0}, "class SimpleNamespace: users=0 must be at least 1"),
    ],
)
def test_a_size_that_the_model_has_not_is_named(attributes, message):
    with pytest.raises(UsageError, match=message):
        resolve((USER,), SimpleNamespace(**attributes), 5)


def test_one_value_stands_for_itself_and_several_go_by_name():
    elements = (IMAGE, USER, LABEL)
    values = {"image": 1, "user": 2, "label": 3}
    assert grouped(elements, "feature", values) == {"image": 1, "user": 2}
    assert grouped(elements, "label", values) == 3
    assert by_name(elements, "label", 3) == {"label": 3}
    assert by_name(elements, "feature", {"user": 2}) == {"user": 2}
    assert of_role(elements, "feature") == (IMAGE, USER)


@pytest.mark.parametrize(
    ("dtype", "real"), [("float32", True), ("bfloat16", True), ("int64", False), ("uint8", False)]
)
def test_real_numbers_are_told_from_integers(dtype, real):
    assert Element("x", (), "feature", dtype).is_real == real
