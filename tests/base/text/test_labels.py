"""Labels on records: what is one, and what is refused before the run."""

import pytest

from cnnbench.base.text.labels import labels_of, parse
from cnnbench.errors import FlagError
from cnnbench.flags import parse_args


def test_labels():
    assert parse("commit=abc123, branch=feature/x,pr=#12") == {
        "commit": "abc123",
        "branch": "feature/x",
        "pr": "#12",
    }
    assert parse("url=https://x.y/?a=b") == {"url": "https://x.y/?a=b"}
    assert parse("") == parse(" , ") == {}


@pytest.mark.parametrize("text", ["commit", "=abc", "commit=", "1st=2", "a b=c", "a=1,a=2"])
def test_what_is_no_label_is_refused_before_the_run(text):
    with pytest.raises(ValueError):
        parse(text)
    with pytest.raises(FlagError, match="--result_label="):
        parse_args([f"--result_label={text}"])


def test_labels_go_into_the_record_and_nothing_in_a_record_makes_reading_them_fail():
    config = parse_args(["--result_label=commit=abc"]).params.as_dict()
    assert labels_of(config) == {"commit": "abc"}
    for value in (None, 3, "no label", ["a=b"]):
        assert labels_of({"result_label": value}) == {}
    assert labels_of({}) == {}
