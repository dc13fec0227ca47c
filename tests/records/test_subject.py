"""The section of a record that names what was measured."""

from __future__ import annotations

import json

import pytest

from cnnbench.records.measurements import Measurements
from cnnbench.records.run import RunRecord
from cnnbench.records.subject import Subject, add_subject, subject_of_record

HEAD = "0123456789abcdef0123456789abcdef01234567"
FOUND = Subject(repository="github.com/o/nets", revision=HEAD, dirty=True, side="b")


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({}, (FOUND.repository, HEAD, True)),
        ({"branch": "dev"}, (FOUND.repository, HEAD, True)),
        ({"commit": HEAD}, (FOUND.repository, HEAD, True)),
        ({"commit": HEAD[:9].upper()}, (FOUND.repository, HEAD, True)),
        # A commit of another repository.
        ({"commit": "v2"}, (None, "v2", None)),
        ({"commit": "v2", "repository": "x"}, ("x", "v2", None)),
        ({"repository": "x"}, ("x", HEAD, True)),
    ],
)
def test_labels_take_precedence(labels, expected):
    subject = FOUND.with_labels(labels)
    assert (subject.repository, subject.revision, subject.dirty) == expected
    assert (subject.side, subject.labels) == ("b", labels)


def test_a_label_names_an_unknown_commit():
    found = Subject(unknown="no git")
    assert found.with_labels({"branch": "dev"}).unknown_commit_warning.endswith(
        "is unknown: no git; --result_label=commit=... names it"
    )
    assert found.with_labels({"commit": "v2"}) == Subject(revision="v2", labels={"commit": "v2"})
    dirty = Subject(repository="nets", revision=HEAD, dirty=True, changes="1")
    assert dirty.with_labels({"commit": HEAD[:9]}).changes == "1"
    assert dirty.with_labels({"commit": "v2"}).changes is None


def test_a_record_names_what_its_label_says_and_reads_back():
    run = Measurements(command=[], config={"result_label": "commit=abc,branch=dev"})
    record = run.make_record()
    assert record.subject == Subject(revision="abc", labels={"commit": "abc", "branch": "dev"})
    assert RunRecord.from_json(record.to_json()) == record


def test_records_of_earlier_versions_name_side_and_label():
    assert subject_of_record(None, {}) == Subject()
    old = subject_of_record(None, {"result_label": "commit=abc"}, {"side": "a", "pair": 1})
    assert (old.revision, old.side) == ("abc", "a")
    own = Subject(revision="def")
    assert subject_of_record(own, {"result_label": "commit=abc"}, {"side": "a"}) is own


def test_the_command_that_started_a_process_adds_what_it_found():
    document = (
        Measurements(command=[], config={"result_label": "branch=dev"}).make_record().to_dict()
    )
    made = add_subject(document, FOUND)
    assert made["subject"]["revision"] == HEAD
    assert made["subject"]["labels"] == {"branch": "dev"}
    assert RunRecord.from_dict(json.loads(json.dumps(made))).subject.side == "b"
    plain = Measurements(command=[], config={}).make_record().to_dict()
    assert "subject" not in plain
    assert add_subject(plain, Subject()) == plain


def test_labels_are_text():
    with pytest.raises(ValueError, match=r"subject\.labels\.n: expected a string"):
        Subject(labels={"n": 3})
