"""What is read from a results directory, and in which order.

Tests cnnbench/judge/history/reading.py.
"""

import dataclasses
from pathlib import Path

from cnnbench.judge.history import contents


def test_hidden_files_and_other_documents_are_ignored(tmp_path, by_commit, saved, reductions):
    made = [
        *by_commit.history([100.0] * 2, per_commit=2),
        reductions(6.0, reductions.point(spec="copy")),
    ]
    saved(saved(tmp_path, made) / "deep", [by_commit(50.0, flags={"model": "resnet20"})])
    saved(tmp_path / ".sweep", [by_commit(1.0)])
    (tmp_path / ".hidden.json").write_text("{")
    (tmp_path / "cut.json").write_text("{")
    (tmp_path / "other.json").write_text('{"schema": 1, "kind": "comparison"}')
    found = contents(tmp_path)
    assert {Path(file.path).name: file.defect for file in found.skipped} == {
        "cut.json": True,
        "other.json": False,
    }
    assert (
        sorted(one.configuration.kind for one in found.entries) == ["allreduce"] * 2 + ["run"] * 5
    )


def test_runs_of_one_second_are_in_order_of_their_run_id(tmp_path, by_commit):
    for number in range(12):
        record = dataclasses.replace(by_commit(1.0), run_id=f"{99 - number}")
        record = dataclasses.replace(record, started_at="2026-11-20T00:00:00+00:00")
        (tmp_path / f"run{number}.json").write_text(record.to_json())
    found = [entry.run_id for entry in contents(tmp_path).entries]
    assert found == [str(number) for number in range(88, 100)]


def test_runs_of_one_second_are_in_order_of_their_pairs(tmp_path, by_commit):
    for number in range(4):
        place = {"side": "a", "seed": 1, "pair": 4 - number, "position": 1}
        record = by_commit(1.0, ab=place, started_at="2026-11-20T00:00:00+00:00")
        (tmp_path / f"run{number}.json").write_text(record.to_json())
    assert [entry.pair[1] for entry in contents(tmp_path).entries] == [1, 2, 3, 4]
