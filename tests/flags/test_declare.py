"""Kinds of values of flags, and flags of two kinds (`cnnbench/flags/declare.py`).

Tests cnnbench/flags/kinds.py.
"""

import re
from pathlib import Path

import pytest
from golden import sentences

from cnnbench.base.values import Duration
from cnnbench.errors import FlagError
from cnnbench.flags import FLAGS, Params
from cnnbench.flags.kinds import numeric_kind
from cnnbench.flags.params import SPECS

GOLDEN = Path(__file__).parent / "golden" / "declare.txt"
EVERY = SPECS["display_every"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("10", 10),
        ("0x10", 16),
        ("10s", Duration(10.0)),
        ("500ms", Duration(0.5)),
        ("2m", Duration(120.0)),
        ("1.5h", Duration(5400.0)),
    ],
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


def test_the_help_has_both_kinds():
    assert EVERY.kind.name == "integer or duration"
    assert EVERY.kind.form == "N|TIME"
