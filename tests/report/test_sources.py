"""Finding what a report is about, and naming what cannot be read."""

import dataclasses
import json

import pytest

from cnnbench.errors import UsageError
from cnnbench.report import load


@pytest.fixture
def folder(tmp_path, runs, everything):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "run.json").write_text(runs(100).to_json())
    (tmp_path / "reduce.json").write_text(everything.allreduces[0].to_json())
    return tmp_path


def test_runs_and_reductions_are_found_wherever_they_are(folder):
    found = load([folder])
    assert len(found.runs) == len(found.allreduces) == 1
    assert found.skipped == ()


def test_copies_count_once(folder):
    (folder / "again.json").write_text((folder / "reduce.json").read_text())
    (folder / "run again.json").write_text((folder / "deep" / "run.json").read_text())
    found = load([folder])
    assert len(found.runs) == len(found.allreduces) == 1
    assert sorted("second copy" in one.reason for one in found.skipped) == [True, True]
    assert found.defects == ()


def test_other_documents_are_no_fault_and_broken_ones_are(folder):
    (folder / "c.json").write_text('{"schema": 1, "kind": "comparison"}')
    (folder / "cut.json").write_text('{"schema": 1, "run_id"')
    broken = json.loads((folder / "reduce.json").read_text()) | {"points": 3}
    (folder / "broken.json").write_text(json.dumps(broken))
    (folder / "later.json").write_text(json.dumps(broken | {"schema": 2}))
    found = load([folder])
    assert {one.path.rsplit("/", 1)[1] for one in found.defects} == {
        "cut.json",
        "broken.json",
        "later.json",
    }
    assert len(found.skipped) == 4


def test_what_does_not_exist_is_wrong_use(folder):
    with pytest.raises(UsageError, match="no such file"):
        load([folder / "gone.json"])


def test_reductions_are_in_order_of_their_start_wherever_that_was(folder, everything):
    moments = {
        "second": "2026-11-20T12:00:00+00:00",
        "third": "2026-11-20T08:00:00-05:00",
        "first": "2026-11-20T13:00:00+02:00",
    }
    for name, moment in moments.items():
        one = dataclasses.replace(everything.allreduces[0], run_id=name, started_at=moment)
        (folder / "deep" / f"{name}.json").write_text(one.to_json())
    assert [one.run_id for one in load([folder / "deep"]).allreduces] == [
        "first",
        "second",
        "third",
    ]
