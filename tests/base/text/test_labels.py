"""Labels on records; tests/cli/test_refusals.py has what is none.

Tests cnnbench/base/values.py.
"""

import pytest

from cnnbench.base.values import labels_from_config, parse_labels, result_label_fault
from cnnbench.plan import parse_run


def test_labels():
    assert parse_labels("commit=abc123, branch=feature/x,pr=#12") == {
        "commit": "abc123",
        "branch": "feature/x",
        "pr": "#12",
    }
    assert parse_labels("url=https://x.y/?a=b") == {"url": "https://x.y/?a=b"}
    assert parse_labels("") == parse_labels(" , ") == {}


def test_labels_go_into_the_record_and_nothing_in_a_record_makes_reading_them_fail():
    config = parse_run(["--result_label=commit=abc"]).params.as_dict()
    assert labels_from_config(config) == {"commit": "abc"}
    for value in (None, 3, "no label", ["a=b"]):
        assert labels_from_config({"result_label": value}) == {}
    assert labels_from_config({}) == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ""),
        ("a=1, b.c-d_2= x y ", ""),
        ("a=1,b", "'b' is not a label"),
        ("a=", "'a=' is not a label"),
        ("1a=2", "'1a=2' is not a label"),
        ("=x", "'=x' is not a label"),
        ("a b=x", "'a b=x' is not a label"),
        ("a=1,b=2,a=3", "a is given twice"),
        ("a=\udcff", "UTF-8"),
    ],
)
def test_what_is_no_label(text, words):
    fault = result_label_fault(text)
    assert bool(fault) == bool(words)
    assert words in fault
    if words and "UTF-8" not in words:
        with pytest.raises(ValueError, match=words):
            parse_labels(text)
    if "\udcff" in text:  # of an earlier record
        assert parse_labels(text) == {"a": "\\udcff"}
