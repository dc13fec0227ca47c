"""Documents made of other objects."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import ClassVar

import pytest

from cnnbench.records.codec import (
    ABSENT,
    HIDDEN,
    NOT_EMPTY,
    JsonKeys,
    Key,
    dataclass_from_sources,
    encode,
    keys_within,
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
