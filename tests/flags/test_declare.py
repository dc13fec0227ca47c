from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cnnbench.errors import FlagError
from cnnbench.flags.declare import flag, specs_of


@dataclass(frozen=True, kw_only=True)
class Group:
    switch: bool = flag(False, "A switch.")
    perhaps: bool | None = flag(None, "A switch with a third position.")
    count: int = flag(1, "A count.", minimum=1, maximum=9)
    share: float | None = flag(None, "A share.", above=0, below=1)
    name: str | None = flag(None, "A name.")
    color: str = flag("red", "A color.", choices=("red", "blue"), lower=True)
    steps: tuple[int, ...] = flag((), "Some steps.", minimum=1)
    epochs: tuple[float, ...] = flag((), "Some epochs.", above=0)


@dataclass(frozen=True, kw_only=True)
class Heir(Group):
    extra: int = flag(0, "One more.")


SPECS = {spec.name: spec for spec in specs_of(Group)}


def test_a_field_says_everything():
    assert [(s.name, s.kind, s.optional, s.default) for s in SPECS.values()] == [
        ("switch", "boolean", False, False),
        ("perhaps", "boolean", True, None),
        ("count", "integer", False, 1),
        ("share", "number", True, None),
        ("name", "string", True, None),
        ("color", "string", False, "red"),
        ("steps", "integers", False, ()),
        ("epochs", "numbers", False, ()),
    ]
    assert SPECS["count"].help == "A count."


def test_inherited_fields_belong_to_the_parent():
    assert [spec.name for spec in specs_of(Heir)] == ["extra"]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("switch", "true", True),
        ("switch", "True", True),
        ("switch", "t", True),
        ("switch", "1", True),
        ("switch", "false", False),
        ("switch", "F", False),
        ("switch", "0", False),
        ("count", "7", 7),
        ("count", "0x10", 16),
        ("share", "1e-3", 0.001),
        ("name", "Ab c", "Ab c"),
        ("color", "BLUE", "blue"),
        ("steps", "1,2, 3", (1, 2, 3)),
        ("steps", "", ()),
        ("epochs", "1,.5", (1.0, 0.5)),
    ],
)
def test_parse(name, text, value):
    parsed = SPECS[name].parse(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("name", "", "is empty; give a value or leave the flag out"),
        ("switch", "yes", "must be true or false"),
        ("switch", "", "must be true or false"),
        ("count", "two", "must be an integer"),
        ("count", "1.5", "must be an integer"),
        ("count", "", "must be an integer"),
        ("share", "half", "must be a finite number"),
        ("steps", "1,x", "must be a comma-separated list of integers"),
        ("steps", "1,,2", "must be a comma-separated list of integers"),
        ("epochs", "1,y", "must be a comma-separated list of numbers"),
        ("share", "1e999", "must be a finite number"),
        ("share", "NaN", "must be a finite number"),
        ("epochs", "1,-1e999", "must be a comma-separated list of numbers"),
        ("count", "1_0", "must be an integer"),
        ("count", "١", "must be an integer"),
        ("count", "0x1_0", "must be an integer"),
        ("share", "0.1_0", "must be a finite number"),
        ("share", "١.٥", "must be a finite number"),
        ("steps", "1,1_0", "must be a comma-separated list of integers"),
    ],
)
def test_parse_refuses(name, text, reason):
    with pytest.raises(FlagError) as caught:
        SPECS[name].parse(text)
    assert str(caught.value) == f"--{name}={text}: {reason}"


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("switch", 1, "true or false"),
        ("switch", None, "true or false"),
        ("count", True, "an integer"),
        ("count", "3", "an integer"),
        ("count", 0, "from 1 to 9"),
        ("count", 10, "from 1 to 9"),
        ("share", 0.0, "greater than 0 and less than 1"),
        ("share", 1.0, "greater than 0 and less than 1"),
        ("share", float("nan"), "finite"),
        ("share", float("inf"), "finite"),
        ("name", 3, "a string"),
        ("color", "green", "one of red, blue"),
        ("steps", [1], "list"),
        ("steps", (1, 0), "at least 1"),
        ("steps", (1, "2"), "list of integers"),
    ],
)
def test_check_refuses(name, value, reason):
    with pytest.raises(FlagError, match=reason) as caught:
        SPECS[name].check(value)
    assert caught.value.flag == name
    assert "\n" not in str(caught.value)


def test_none_is_a_value_of_optional_flags():
    for spec in SPECS.values():
        if spec.optional:
            spec.check(None)


def test_normalise_leaves_wrong_types_alone():
    assert SPECS["share"].normalise("x") == "x"
    assert SPECS["share"].normalise(True) is True
    assert SPECS["steps"].normalise("12") == "12"
    assert SPECS["count"].normalise(1.0) == 1.0


@settings(deadline=None)
@given(st.integers(min_value=1, max_value=9))
def test_integers_survive_text(value):
    spec = SPECS["count"]
    assert spec.parse(spec.text(value)) == value


@settings(deadline=None)
@given(st.lists(st.floats(min_value=0, exclude_min=True, max_value=1e38), max_size=4))
def test_numbers_survive_text(values):
    spec = SPECS["epochs"]
    parsed = spec.parse(spec.text(tuple(values)))
    assert parsed == tuple(values)
    spec.check(parsed)
