"""Documents made of other objects."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from fractions import Fraction
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

from cnnbench.records.codec import (
    ABSENT,
    HIDDEN,
    NOT_EMPTY,
    OPTIONAL,
    Document,
    JsonKeys,
    Key,
    check_amounts_in_range,
    dataclass_from_sources,
    decode,
    encode,
    index_of_invalid_amount,
    is_valid_amount,
    json_text,
    keys_within,
    parse_start_time,
    to_floats,
)


@dataclass
class Part:
    unit: str
    note: str = ""


@dataclass
class Whole:
    json_keys: ClassVar[JsonKeys] = (
        "double",
        ...,
        Key("length", "size"),
        Key("unit", "part.unit"),
        Key("other_unit", "other.unit"),
        Key("absent_unit", "other.unit", ABSENT),
        Key("note", "part.note", NOT_EMPTY),
    )

    name: str
    size: int
    part: Part
    other: Part | None = None
    secret: str = field(default="", metadata=HIDDEN)

    @property
    def double(self) -> int:
        return 2 * self.size


def test_listed_keys_are_written_in_order_and_others_where_the_dots_are():
    written = encode(Whole("a", 2, Part("s")))
    assert [*written.items()] == [
        ("double", 4),
        ("name", "a"),
        ("part", {"unit": "s", "note": ""}),
        ("other", None),
        ("length", 2),
        ("unit", "s"),
        ("other_unit", None),
    ]
    assert encode(Whole("a", 2, Part("s", "x"), Part("ms")))["absent_unit"] == "ms"
    assert encode(Whole("a", 2, Part("s", "x")))["note"] == "x"


def test_keys_of_an_attribute_may_be_written_in_its_place():
    @dataclass
    class Outer:
        json_keys: ClassVar[JsonKeys] = (*keys_within("whole", Whole), "own")

        whole: Whole
        own: int

    whole = Whole("a", 2, Part("s"))
    assert encode(Outer(whole, 3)) == {**encode(whole), "own": 3}


def test_a_document_gathers_what_others_have_under_the_same_name():
    @dataclass
    class Whole:
        name: str
        size: int
        note: str = "none"

    sources = SimpleNamespace(name="first"), SimpleNamespace(name="second", size=2)
    assert dataclass_from_sources(Whole, *sources) == Whole("first", 2)
    assert dataclass_from_sources(Whole, *sources, size=3, note="own") == Whole("first", 3, "own")
    with pytest.raises(TypeError, match="size"):
        dataclass_from_sources(Whole, sources[0])


class Colour(Enum):
    RED = "red"


@dataclass
class Everything(Document):
    kind: ClassVar[str] = "everything"
    schema: ClassVar[int] = 3

    text: str
    count: int
    number: float
    flag: bool
    part: Part
    numbers: tuple[float, ...]
    parts: tuple[Part, ...]
    free: Mapping[str, object]
    counts: Mapping[str, int]
    global_: int | None = None
    late: int = field(default=7, metadata=OPTIONAL)
    secret: int = field(default=1, metadata=HIDDEN)


EVERYTHING = Everything(
    text="a",
    count=2**64 - 1,
    number=0.5,
    flag=True,
    part=Part("s", "x"),
    numbers=(1.0, 2.5),
    parts=(Part("s"), Part("ms")),
    free={"any": [1, None, {"deep": 2**1023 - 1}]},
    counts={"a": 0, "b": 3},
    global_=4,
)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        *[(one, one) for one in (None, True, False, "a", 0, 7, 0.5)],
        *[(math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity")],
        *[(np.int64(3), 3), (np.float32(0.5), 0.5), (Fraction(1, 4), 0.25)],
        *[(Colour.RED, "red"), ((1, [Colour.RED]), [1, ["red"]]), ([], [])],
        ({1: Colour.RED, "b": {"c": (2,)}}, {"1": "red", "b": {"c": [2]}}),
        (Part("s"), {"unit": "s", "note": ""}),
    ],
)
def test_values_become_json(value, written):
    assert encode(value) == written
    assert type(encode(value)) is type(written)


def test_a_value_without_json_form_is_named():
    with pytest.raises(ValueError, match=r"\{1\} of type set"):
        encode({"a": {1}})


def test_a_document_is_read_as_it_was_written():
    written = EVERYTHING.to_dict()
    assert [*written][:3] == ["schema", "kind", "text"]
    assert (written["schema"], written["kind"], written["global"]) == (3, "everything", 4)
    assert "secret" not in written
    assert Everything.from_json(EVERYTHING.to_json()) == EVERYTHING
    assert Everything.from_dict({**written, "unknown": 1, "secret": 5}) == EVERYTHING
    del written["late"]
    assert Everything.from_dict(written).late == 7
    assert encode({"all": EVERYTHING}) == {"all": EVERYTHING.to_dict()}
    odd = replace(EVERYTHING, number=-math.inf, numbers=(1.0, math.inf), global_=None)
    assert Everything.from_json(odd.to_json()) == odd
    nan = replace(EVERYTHING, number=math.nan)
    assert math.isnan(Everything.from_json(nan.to_json()).number)


@pytest.mark.parametrize(
    ("key", "value", "read"),
    [
        *[("number", 2, 2.0), ("number", "Infinity", math.inf), ("numbers", [1, 2.5], (1.0, 2.5))],
        *[("count", -(2**64) + 1, -(2**64) + 1), ("free", {"a": True}, {"a": True})],
        *[("global", None, None), ("counts", {}, {}), ("parts", [], ())],
    ],
)
def test_values_of_another_form_are_read(key, value, read):
    found = getattr(
        Everything.from_dict({**EVERYTHING.to_dict(), key: value}), key.replace("global", "global_")
    )
    assert found == read
    assert type(found) is type(read)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("text", 1, "text: expected a string, got 1"),
        ("count", 2**64, "count: expected an integer"),
        ("count", 1.0, "count: expected an integer of 64 bits, got 1.0"),
        ("count", True, "count: expected an integer"),
        ("number", True, "number: expected a number, got True"),
        ("number", "nan", "number: expected a number, got 'nan'"),
        ("number", 2**1024, "number: expected a number"),
        ("flag", 1, "flag: expected true or false, got 1"),
        ("part", 1, "part: expected an object, got 1"),
        ("part", {"note": ""}, "part.unit: missing"),
        ("numbers", {}, "numbers: expected a list, got {}"),
        ("numbers", [1.0, "a"], "numbers[1]: expected a number, got 'a'"),
        ("parts", [{"unit": "s", "note": ""}, {"unit": 2}], "parts[1].unit: expected a string"),
        ("free", [], "free: expected an object, got []"),
        ("free", {"a": 2**1024}, "free.a: "),
        ("free", {"a": [1, {"b": -(2**1024)}]}, "free.a: "),
        ("counts", {"a": -1}, "counts.a: -1 is negative"),
        ("counts", {"a": 1.5}, "counts.a: expected an integer"),
        ("kind", "other", "kind: 'other' is not 'everything'"),
        ("schema", 4, "schema: this version of cnnbench reads schema 3, not 4"),
        ("schema", True, "schema: this version"),
    ],
)
def test_a_value_of_the_wrong_type_is_named(key, value, message):
    document = {**EVERYTHING.to_dict(), "parts": [{"unit": "s", "note": ""}], key: value}
    with pytest.raises(ValueError, match=re.escape(message)):
        Everything.from_dict(document)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "record: expected an object, got list"),
        ({"kind": "everything"}, "schema: missing"),
        ({"schema": 3}, "kind: 'run' is not 'everything'"),
        ({"schema": 3, "kind": "everything"}, "text: missing"),
    ],
)
def test_what_is_no_such_document_is_refused(document, message):
    with pytest.raises(ValueError, match=message):
        Everything.from_dict(document)
    with pytest.raises(ValueError, match="record: expected an object, got 1"):
        decode(Part, 1)


def test_the_lines_of_a_document():
    document = {"a": [1, 2], "b": [1, 2], "c": [], "d": {"e": None}, "f": 3}
    assert json_text(document, ("b", "c", "f")) == (
        '{\n"a": [1, 2],\n"b": [\n  1,\n  2\n],\n"c": [],\n"d": {"e": null},\n"f": 3\n}\n'
    )
    for text in (document | {"a": math.nan}, document | {"b": [math.inf]}):
        with pytest.raises(ValueError, match="not JSON compliant"):
            json_text(text, ("b",))

    class Indented(Everything):
        indented = True

    class Listed(Everything):
        item_lines = ("numbers",)

    parts = vars(EVERYTHING)
    assert Indented(**parts).to_json() == json.dumps(EVERYTHING.to_dict(), indent=1) + "\n"
    assert Listed(**parts).to_json() == json_text(EVERYTHING.to_dict(), ("numbers",))


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("2024-05-01T12:00:00+02:00", "2024-05-01T10:00:00+00:00"),
        ("2024-05-01T12:00:00Z", "2024-05-01T12:00:00+00:00"),
        ("2024-05-01T12:00:00-07:00", "2024-05-01T19:00:00+00:00"),
    ],
)
def test_the_start_of_a_run_is_in_utc(text, start):
    assert parse_start_time(text).isoformat() == start


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("yesterday", "is not an ISO 8601 time"),
        ("2024-05-01T12:00:00", "lacks its offset"),
        ("0001-01-01T00:00:00+10:00", "is outside the years"),
        ("9999-12-31T23:59:59-14:00", "is outside the years"),
    ],
)
def test_a_start_without_a_time_in_utc_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_start_time(text)


@pytest.mark.parametrize(
    ("value", "valid"),
    [
        *[(1e-40, True), (9e-41, False), (1e40, True), (1.1e40, False)],
        *[(0, False), (-1.0, False), (math.nan, False), (math.inf, False)],
    ],
)
def test_the_range_of_amounts(value, valid):
    @dataclass
    class Amounts:
        name: str
        time_: float

    assert is_valid_amount(value) == valid
    assert index_of_invalid_amount([1.0, value]) == (None if valid else 1)
    assert index_of_invalid_amount([value, 1.0, value]) == (None if valid else 0)
    assert index_of_invalid_amount([0.0, 1.0, value], allow_zero=True) == (
        None if valid or not value else 2
    )
    assert index_of_invalid_amount([]) is None
    if valid or value == 0:
        check_amounts_in_range("part", Amounts("a", value))
    else:
        with pytest.raises(ValueError, match=rf"part\.time: {re.escape(str(value))} is not in"):
            check_amounts_in_range("part", Amounts("a", value))


def test_numbers_by_name_become_floats():
    assert to_floats("part", {"a": 1, "b": "NaN", "c": "-Infinity"}) == {
        **{"a": 1.0, "b": pytest.approx(math.nan, nan_ok=True), "c": -math.inf}
    }
    for wrong in ("x", None):
        with pytest.raises(ValueError, match=r"part: .* are not all numbers"):
            to_floats("part", {"a": wrong})
