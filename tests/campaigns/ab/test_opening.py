"""A and B before they are measured: different TensorFlows measure their own gradients."""

from __future__ import annotations

import io

import pytest

from cnnbench.base.terminal import ChildProcessReporter
from cnnbench.campaigns.ab import opening
from cnnbench.campaigns.ab.side import AbSide

LIBRARY = "--conv_gradients=library"
LENET = ("--model=lenet", "--device=cpu")


@pytest.fixture
def opened(monkeypatch):
    """opened(A, B, versions): the flags of A and B before their resolution, and what is printed.

    `versions` are those of TensorFlow, by interpreter and PYTHONPATH; every interpreter has a
    cnnbench with the flag except "old".
    """

    def open_both(a, b, versions):
        def answer(side):
            version = versions.get(side.python or side.variables.get("PYTHONPATH"))
            return {} if version is None else {"tensorflow_version": version}

        monkeypatch.setattr(opening, "package_versions", answer)
        monkeypatch.setattr(opening, "supports", lambda side, feature: side.python != "old")
        monkeypatch.setattr(opening, "resolve_flags", lambda side, name: side)
        told = io.StringIO()
        with opening.opened_sides((a, b), ChildProcessReporter(told), False) as both:
            return both["a"].flags, both["b"].flags, told.getvalue()

    return open_both


def side(python=None, *flags, **variables):
    return AbSide(python=python, flags=(*LENET, *flags), variables=variables)


def test_auto_means_library_between_two_tensorflows(opened):
    versions = {"/old/python": "2.18.0", "/new/python": "2.21.0"}
    a, b, told = opened(side("/old/python"), side("/new/python"), versions)
    assert a == b == (*LENET, LIBRARY)
    assert all(text in told for text in ("2.18.0", "2.21.0", "--conv_gradients=auto means library"))


def test_a_python_path_may_hold_another_tensorflow(opened):
    a, b, _ = opened(side(), side(PYTHONPATH="/nightly"), {None: "2.21.0", "/nightly": "2.23.0"})
    assert a[-1] == b[-1] == LIBRARY


@pytest.mark.parametrize(
    ("python", "flags", "other"),
    [
        ("/same/python", (), "2.21.0"),  # another interpreter with the same TensorFlow
        ("/new/python", ("--forward_only",), "2.18.0"),
        ("/new/python", ("--eval=true",), "2.18.0"),
        ("/new/python", (), None),  # an interpreter that does not answer
        ("old", (), "2.18.0"),  # its cnnbench has no such flag
    ],
)
def test_otherwise_the_flags_stay(opened, python, flags, other):
    a = side("/this/python", "--conv_gradients=library", *flags)
    b = side(python, *flags)
    versions = {"/this/python": "2.21.0", python: other}
    assert opened(a, b, versions)[:2] == (a.flags, b.flags)


def test_a_given_value_stays(opened):
    given = side("/a", "--conv_gradients=fastest"), side("/b", "--conv_gradients=Auto")
    a, b, _ = opened(*given, {"/a": "2.18.0", "/b": "2.21.0"})
    assert (a[-1], b[-1]) == ("--conv_gradients=fastest", LIBRARY)


def test_equal_interpreters_are_not_asked(opened, monkeypatch):
    flags = side(None, OMP_NUM_THREADS="1"), side(None, OMP_NUM_THREADS="2")
    assert opened(*flags, {None: 1 / 3})[:2] == (LENET, LENET)
