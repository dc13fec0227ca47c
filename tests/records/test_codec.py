"""Documents made of other objects."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from cnnbench.records.codec import dataclass_from_sources


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
