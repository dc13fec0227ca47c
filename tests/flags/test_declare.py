"""Kinds of values of flags, and flags of two kinds (`cnnbench/flags/declare.py`).

Tests cnnbench/flags/kinds.py.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from golden import sentences

from cnnbench.base.values import Duration
from cnnbench.errors import FlagError
from cnnbench.flags import FLAGS, Params
from cnnbench.flags.declare import (
    Affects,
    ComparedBy,
    RunPart,
    flag,
    flag_sections,
    flag_texts,
    names_of_flags,
    number_flag,
    redeclare_flag,
    specs_of,
    split_comma_separated,
    split_options,
)
from cnnbench.flags.kinds import BOOLEAN, numeric_kind
from cnnbench.flags.params import SPECS

GOLDEN = Path(__file__).parent / "golden" / "declare.txt"
EVERY = SPECS["display_every"]


@pytest.mark.parametrize(
    ("text", "value"),
    [("10", 10), ("0x10", 16), ("500ms", Duration(0.5)), ("1.5h", Duration(5400.0))],
)
def test_a_flag_of_two_kinds_takes_values_of_each(text, value):
    assert EVERY.parse(text) == value
    params = Params(display_every=text)
    assert params.display_every == value
    written = params.as_dict()["display_every"]
    assert written == (text if isinstance(value, Duration) else value)
    assert Params.from_dict({"display_every": written}) == params
    assert (
        EVERY.parse(EVERY.text(value if isinstance(value, int) else params.display_every)) == value
    )


NO_INTERVALS = ("", "x", "1.5", "-3s", "0s", "3 d", "1e3s", "..s", "nans", "0", "-2", 1.5, True)


def test_what_no_kind_takes_is_refused():
    told = {}
    for value in NO_INTERVALS:
        with pytest.raises(FlagError) as caught:
            EVERY.check(EVERY.normalise_or_parse(value))
        assert caught.value.flag == "display_every"
        told[repr(value)] = caught.value.reason
    sentences(GOLDEN, told, told)


@pytest.mark.parametrize("spec", [spec for spec in FLAGS if spec.choices], ids=lambda s: s.name)
def test_a_refusal_lists_every_choice(spec):
    with pytest.raises(FlagError) as caught:
        spec.check(spec.normalise_or_parse("no such choice"))
    assert caught.value.reason.endswith(", ".join(spec.choices))


def test_limits_have_all_digits():
    kind = numeric_kind(int, minimum=0, maximum=2**63 - 1)
    assert re.findall(r"\d+", kind.accepted()) == ["0", "9223372036854775807"]
    assert kind.fault(-1) == f"must be {kind.accepted()}"
    assert kind.fault(0) == kind.fault(2**63 - 1) == ""
    half = numeric_kind(float, above=0.5, maximum=1.0)
    assert re.findall(r"\d[.\d]*", half.accepted()) == ["0.5", "1"]
    assert half.fault(0.5)
    assert half.fault(1.1)
    assert not half.fault(1.0)


@dataclass(frozen=True, kw_only=True)
class Own:
    """A flag of every kind."""

    switch: bool = flag(False, "A boolean.", affects=Affects.NOTHING)
    count: int = flag(3, "An integer.", minimum=1, part=RunPart.BATCH | RunPart.LENGTH)
    wide: int = flag(3, "An integer of 64 bits.", maximum=2**63 - 1)
    share: float | None = flag(None, "A number.", above=0, below=1)
    limit: float | None = flag(None, "A number, of which 0 is none.", unset=0)
    text: str = flag("", "Any text.", compared_by=ComparedBy.SEED)
    label: str | None = flag(None, "An optional text.")
    old: str | None = flag(None, "An optional text, of which nothing is none.", unset="")
    mode: str = flag("fast", "One of two.", choices=("fast", "exact", ""), lower=True)
    file: str | None = flag(None, "A path.", path="file", part=RunPart.LENGTH)
    url: str | None = flag(None, "A path.", path="folder or URL")
    output: str | None = flag(None, "A path.", path="file or -")
    steps: tuple[int, ...] = flag((), "Integers.", minimum=1)
    names: tuple[str, ...] = flag((), "Texts.", repeated=True, separator="")
    odd: int = flag(1, "Odd.", fault=lambda value: "" if value % 2 else "must be odd")


SPECS_OF_OWN = {spec.name: spec for spec in specs_of(Own)}


@pytest.mark.parametrize(
    ("name", "text", "value", "written"),
    [
        *(("switch", text, True, "true") for text in ("true", "T", "1")),
        *(("switch", text, False, "false") for text in ("False", "f", "0")),
        *(("count", text, 16, "16") for text in ("16", "0x10", "+16")),
        ("count", str(2**31 - 1), 2**31 - 1, "2147483647"),
        ("wide", "9223372036854775807", 2**63 - 1, "9223372036854775807"),
        ("share", "0.5", 0.5, "0.5"),
        ("share", "1e-3", 0.001, "0.001"),
        ("limit", "0", None, "0"),
        ("limit", "0.0", None, "0"),
        ("limit", "2", 2.0, "2"),
        ("text", "", "", ""),
        ("text", "''", "", ""),
        ("text", '""', "", ""),
        ("text", " A b ", " A b ", " A b "),
        ("label", "''", None, ""),
        ("old", "", None, ""),
        ("old", " ", None, ""),
        ("old", "x", "x", "x"),
        ("mode", "EXACT", "exact", "exact"),
        ("mode", "''", "", ""),
        ("file", "file:///a/b", "/a/b", "/a/b"),
        ("url", "gs://a/b", "gs://a/b", "gs://a/b"),
        ("output", "-", "/dev/stdout", "/dev/stdout"),
        ("output", "A-", "A-", "A-"),
        ("steps", "1, 2,3", (1, 2, 3), "1,2,3"),
        ("steps", "", (), ""),
        ("steps", "5", (5,), "5"),
        ("names", "a,b", ("a,b",), "a,b"),
        ("names", "''", ("",), ""),
        ("odd", "3", 3, "3"),
    ],
)
def test_texts_and_values(name, text, value, written):
    spec = SPECS_OF_OWN[name]
    parsed = spec.parse(text)
    assert (parsed, type(parsed)) == (value, type(value))
    spec.check(parsed)
    assert spec.text(parsed) == written
    assert spec.normalise_or_parse(parsed) == parsed
    assert flag_texts({name: parsed}, SPECS_OF_OWN) == {name: written}


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        *(("switch", value, "true or false") for value in ("yes", "", 1, None)),
        *(("count", value, "an integer") for value in ("1.5", "x", "", 1.0, True, None, (1,))),
        *(("count", value, "at least 1") for value in ("0", -1)),
        ("count", 2**31, "larger than 2147483647"),
        ("wide", 2**63, "at most 9223372036854775807"),
        *(("share", value, "a finite number") for value in ("x", "nan", float("inf"), True)),
        *(("share", value, "greater than 0 and less than 1") for value in ("0", 0, "1", 1.0)),
        ("limit", 3.5e38, "larger than 3"),
        ("limit", -3.5e38, "larger than 3"),
        ("text", 3, "a string"),
        ("text", None, "a string"),
        ("mode", "exac", "exact"),
        ("mode", None, "a string"),
        ("file", "gs://a/b", "gs"),
        ("file", "-", "must be a path"),
        ("steps", "1,x", "a comma-separated list of integers"),
        ("steps", 5, "a comma-separated list of integers"),
        ("steps", "3,0", "at least 1"),
        ("steps", (3, 1.0), "a comma-separated list of integers"),
        ("odd", "2", "must be odd"),
    ],
)
def test_wrong_texts_and_values_are_refused(name, value, reason):
    spec = SPECS_OF_OWN[name]
    with pytest.raises(FlagError) as caught:
        spec.check(spec.normalise_or_parse(value))
    assert caught.value.flag == name
    assert reason in caught.value.reason


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("text", "a\0b", "null character"),
        ("count", "\0", "null character"),
        ("label", "", "is empty"),
        ("label", " ", "is empty"),
        ("share", "", "a finite number"),
    ],
)
def test_wrong_texts_of_a_command_line_are_refused(name, text, reason):
    with pytest.raises(FlagError) as caught:
        SPECS_OF_OWN[name].parse(text)
    assert "\0" not in str(caught.value)
    assert caught.value.flag == name
    assert reason in caught.value.reason


def test_none_is_a_value_of_optional_flags():
    optional = {"share", "limit", "label", "old", "file", "url", "output"}
    assert {name for name, spec in SPECS_OF_OWN.items() if spec.optional} == optional
    for name in optional:
        SPECS_OF_OWN[name].check(None)
        assert SPECS_OF_OWN[name].stored_form("") is None
    assert SPECS_OF_OWN["limit"].stored_form(0) is None
    assert SPECS_OF_OWN["share"].stored_form(0) == 0.0
    assert SPECS_OF_OWN["text"].stored_form("") == ""
    assert SPECS_OF_OWN["count"].stored_form(0) == 0


def test_what_flags_affect_and_the_parts_that_use_them():
    def names(which):
        return names_of_flags(SPECS_OF_OWN.values(), which)

    assert names(Affects.NOTHING) == names(ComparedBy.NOTHING) == ("switch",)
    assert names(ComparedBy.SEED) == ("text",)
    assert names(RunPart.LENGTH) == ("count", "file")
    assert names(RunPart.BATCH) == ("count",)
    assert names(RunPart.WARM_UP) == ()
    assert len(names(Affects.RESULT)) == len(SPECS_OF_OWN) - 1
    assert [name for name, spec in SPECS_OF_OWN.items() if spec.takes_urls] == ["url"]


def test_words_in_the_help():
    facts = {
        name: (spec.kind.name, spec.kind.form, spec.kind.accepted())
        for name, spec in SPECS_OF_OWN.items()
    }
    assert facts == {
        "switch": ("boolean", "", ""),
        "count": ("integer", "N", "at least 1"),
        "wide": ("integer", "N", "at most 9223372036854775807"),
        "share": ("number", "X", "greater than 0 and less than 1"),
        "limit": ("number", "X", ""),
        **dict.fromkeys(("text", "label", "old", "file", "output"), ("string", "TEXT", "")),
        "mode": ("string", "TEXT", "one of fast, exact, ''"),
        "url": ("string", "TEXT", "a path or a URL"),
        "steps": ("integers", "N,N,...", "at least 1"),
        "names": ("strings", "TEXT,TEXT,...", ""),
        "odd": ("integer", "N", ""),
    }
    assert BOOLEAN.wording == "true or false"
    assert EVERY.kind.form == "N|TIME"


def test_a_flag_is_declared_again_with_changes():
    @dataclass(frozen=True, kw_only=True)
    class Again:
        count: int = redeclare_flag(Own, "count", default=9, maximum=20)
        share: float | None = redeclare_flag(Own, "share")

    count, share = specs_of(Again)
    assert count == replace(SPECS_OF_OWN["count"], default=9, maximum=20)
    assert share == SPECS_OF_OWN["share"]
    with pytest.raises(FlagError, match="from 1 to 20"):
        count.check(21)


def test_a_number_without_a_field():
    spec = number_flag("rate", "A rate.", RunPart.UPDATE, optional=True, minimum=0)
    assert (spec.name, spec.help, spec.part, spec.default) == (
        *("rate", "A rate.", RunPart.UPDATE, None),
    )
    spec.check(None)
    spec.check(0.0)
    with pytest.raises(FlagError, match=r"^--rate=-1: must be at least 0"):
        spec.check(-1.0)
    with pytest.raises(FlagError, match="finite number"):
        number_flag("rate", "A rate.", RunPart.UPDATE, 0.5).check(None)


def test_flags_are_split():
    values = {"batch_size": 4, "count": 5, "text": "x"}
    assert split_options(Own, values) == (Own(count=5, text="x"), {"batch_size": 4})
    assert split_comma_separated(" b, a ,,b,c ") == ("b", "a", "c")
    assert split_comma_separated("") == ()
    sections = flag_sections(Own, {"switch": "First", "share": "Second", "limit": "First"})
    first, second = [*SPECS_OF_OWN.values()], SPECS_OF_OWN["share"]
    first.remove(second)
    assert [*sections.items()] == [("First", (*first,)), ("Second", (second,))]
