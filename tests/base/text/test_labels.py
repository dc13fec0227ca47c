"""Labels on records; tests/cli/test_refusals.py has what is none.

Tests cnnbench/base/values.py.
"""

from cnnbench.base.values import labels_from_config, parse_labels
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
