"""Schemas made of dataclasses: they allow what `encode` writes, and nothing else."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from jsonschema import Draft202012Validator

from cnnbench.cli.schemas import schema_of
from cnnbench.records.codec import ABSENT, OPTIONAL, Document, computed, encode, one_of


class Colour(enum.Enum):
    RED = "red"


@dataclass(frozen=True)
class Part:
    """A part.

    Attributes:
      size, weight: of it,
        in its unit; None if unknown.
    """

    size: float
    weight: int | None


@dataclass(frozen=True, kw_only=True)
class Whole(Document):
    """A whole,
    of parts.

    Not for readers.

    Attributes:
      parts: all of it.

      colour: of all parts.
    """

    kind: ClassVar[str] = "whole"
    schema: ClassVar[int] = 3

    parts: tuple[Part, ...]
    colour: Colour = Colour.RED
    class_: str = field(default="a", metadata=one_of("ab"))
    note: str | None = field(default=None, metadata=ABSENT)
    later: bool = field(default=False, metadata=OPTIONAL)
    place: Mapping[str, Any] = field(default_factory=dict, metadata={"form": Part})
    facts: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    @computed
    def sum(self) -> float:
        """Of all parts."""
        return math.fsum(part.size for part in self.parts)


WHOLE = Whole(
    parts=(Part(1.5, None), Part(math.inf, 2)), place={"size": 1, "weight": 1}, facts={"a": [1]}
)


@pytest.fixture(scope="module")
def validator():
    schema = schema_of(Whole, "a test")
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def test_what_is_written_is_valid(validator):
    document = encode(WHOLE)
    assert "note" not in document
    validator.validate(document)
    del document["later"]
    validator.validate(document)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("schema", 2),
        ("kind", "run"),
        ("parts", [{"size": "many", "weight": 1}]),
        ("parts", [{"size": 1.0}]),
        ("parts", [{"size": 1.0, "weight": 1.5}]),
        ("parts", [{"size": 1.0, "weight": 1, "age": 1}]),
        ("colour", "blue"),
        ("class", "c"),
        ("class_", "a"),
        ("note", 1),
        ("place", {"size": 1}),
        ("names", {"a": 1}),
        ("sum", None),
    ],
)
def test_anything_else_is_not(validator, key, value):
    assert not validator.is_valid({**encode(WHOLE), key: value})


@pytest.mark.parametrize("key", ["schema", "kind", "parts", "class", "facts", "sum"])
def test_keys_that_must_be_there(validator, key):
    assert not validator.is_valid({k: v for k, v in encode(WHOLE).items() if k != key})


def test_descriptions_are_those_of_the_docstrings():
    schema = schema_of(Whole, "a test")
    assert (schema["title"], schema["description"]) == ("a test", "A whole, of parts.")
    assert schema["properties"]["colour"]["description"] == "of all parts."
    part = schema["$defs"]["Part"]["properties"]
    assert part["weight"]["description"] == "of it, in its unit; null if unknown."


def test_a_type_that_is_never_written_is_named():
    @dataclass(frozen=True)
    class Wrong:
        value: complex

    with pytest.raises(TypeError, match="complex"):
        schema_of(Wrong, "")
