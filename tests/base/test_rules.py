"""Rules about flags: which flag is refused, which notices are printed, and in which order."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cnnbench.base.rules import (
    always,
    no_effect,
    no_effect_without,
    notices_about,
    raise_first_refusal,
    refuse,
    refuse_any_value,
    refuse_both,
    refuse_with,
)
from cnnbench.errors import FlagError

DEFAULTS = {"width": 1, "depth": 2, "colour": "red"}


class Values(SimpleNamespace):
    """Values of three flags."""

    def changed(self, flag):
        return getattr(self, flag) != DEFAULTS[flag]

    def text(self, flag):
        return f"<{getattr(self, flag)}>"


def facts(**values):
    return SimpleNamespace(params=Values(**{**DEFAULTS, **values}))


def refused(rules, **values):
    """Flag and message of the refusal; None if no rule refuses a flag."""
    try:
        raise_first_refusal(rules, facts(**values))
    except FlagError as error:
        return error.flag, str(error)
    return None


def test_the_first_flag_that_differs_from_its_default_is_refused():
    rules = [refuse(("width", "depth"), lambda p: p.params.colour == "red", "is too much")]
    assert refused(rules) is None
    assert refused(rules, depth=3) == ("depth", "--depth=<3>: is too much")
    assert refused(rules, width=5, depth=3) == ("width", "--width=<5>: is too much")
    assert refused(rules, width=5, colour="blue") is None


def test_a_default_is_refused_by_a_rule_for_any_value():
    rules = [refuse_any_value("width", lambda p: p.params.depth > 2, "must not be small")]
    assert refused(rules) is None
    assert refused(rules, depth=3) == ("width", "--width=<1>: must not be small")


def test_the_first_rule_gives_the_reason_and_notices_refuse_nothing():
    rules = [
        no_effect("depth", always, "ever"),
        refuse("depth", lambda p: p.params.depth > 5, "is large"),
        refuse("depth", always, "is wrong"),
    ]
    assert refused(rules, depth=6) == ("depth", "--depth=<6>: is large")
    assert refused(rules, depth=3) == ("depth", "--depth=<3>: is wrong")


@pytest.mark.parametrize("nothing", ["", None])
def test_a_function_gives_the_reason_or_none_or_raises(nothing):
    def reason(p):
        if p.params.depth == 9:
            raise FlagError("colour", "x", "is another matter")
        return f"is {p.params.depth}" if p.params.depth > 5 else nothing

    rules = [refuse("depth", always, reason)]
    assert refused(rules, depth=3) is None
    assert refused(rules, depth=6) == ("depth", "--depth=<6>: is 6")
    assert refused(rules, depth=9) == ("colour", "--colour=x: is another matter")


def test_flags_with_one_reason_share_a_line_and_the_first_rule_has_each_flag():
    rules = [
        refuse("width", always, "is refused"),
        no_effect("width", lambda p: p.params.colour == "blue", "in blue"),
        no_effect(("width", "colour"), always, "here"),
        no_effect("depth", always, "here"),
        no_effect("depth", always, "there"),
    ]
    given = ("depth", "width")
    assert notices_about(rules, facts(), given) == ("--depth and --width have no effect here",)
    assert notices_about(rules, facts(colour="blue"), given) == (
        "--depth has no effect here",
        "--width has no effect in blue",
    )
    assert notices_about(rules, facts(colour="blue"), ("width", "depth")) == (
        "--width has no effect in blue",
        "--depth has no effect here",
    )
    assert notices_about(rules, facts(), ()) == ()
    three = ("colour", "depth", "width")
    assert notices_about(rules, facts(), three) == (
        "--colour, --depth and --width have no effect here",
    )


def test_a_rule_without_a_reason_leaves_the_flag_to_the_next_rule():
    rules = [no_effect("depth", always, lambda p: ""), no_effect("depth", always, "there")]
    assert notices_about(rules, facts(), ["depth"]) == ("--depth has no effect there",)


def test_rules_about_another_flag():
    rules = [refuse_both("depth", "width"), refuse_with("colour", "width", ", which has none")]
    assert refused(rules, depth=3, colour="blue", width=0) is None
    assert refused(rules, colour="red") is None
    assert refused(rules, depth=3) == (
        "depth",
        "--depth=<3>: cannot be used with --width; give one of the two",
    )
    assert refused(rules, colour="blue") == (
        "colour",
        "--colour=<blue>: cannot be used with --width, which has none",
    )
    unused = [no_effect_without("depth", "width")]
    assert notices_about(unused, facts(), ["depth"]) == ()
    assert notices_about(unused, facts(width=0), ["depth"]) == (
        "--depth has no effect without --width",
    )


def test_a_notice_may_say_something_else():
    rules = [no_effect("depth", always, lambda p: f"to {p.params.depth + 1}", says="is rounded up")]
    assert notices_about(rules, facts(depth=7), ["depth"]) == ("--depth is rounded up to 8",)
