"""Kinds of values of flags, and flags of two kinds."""

import pytest

from cnnbench.base.text import Duration
from cnnbench.errors import FlagError
from cnnbench.flags import Params
from cnnbench.flags.declare import numeric_kind
from cnnbench.flags.params import SPECS

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


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        *(
            (text, "must be an integer or a duration such as 500ms, 10s or 2m")
            for text in ("", "x", "1.5", "-3s", "0s", "3 d", "1e3s", "..s", "nans")
        ),
        ("0", "must be at least 1"),
        ("-2", "must be at least 1"),
        (1.5, "must be an integer or a duration such as 500ms, 10s or 2m"),
        (True, "must be an integer or a duration such as 500ms, 10s or 2m"),
    ],
)
def test_what_no_kind_takes_is_refused(value, reason):
    with pytest.raises(FlagError) as caught:
        EVERY.check(EVERY.normalise_or_parse(value))
    assert caught.value.reason == reason


def test_limits_have_all_digits():
    kind = numeric_kind(int, minimum=0, maximum=2**63 - 1)
    assert kind.accepted() == "from 0 to 9223372036854775807"
    assert kind.fault(-1) == "must be from 0 to 9223372036854775807"
    assert (
        numeric_kind(float, above=0.5, maximum=1.0).accepted() == "greater than 0.5 and at most 1"
    )


def test_the_help_has_both_kinds():
    assert EVERY.kind.name == "integer or duration"
    assert EVERY.kind.form == "N|TIME"
    assert EVERY.kind.accepted() == "at least 1, or a duration such as 500ms, 10s or 2m"
