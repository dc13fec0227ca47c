import json
import os
from dataclasses import replace

import pytest

from cnnbench.base.terminal import ProgressLine
from cnnbench.errors import UsageError
from cnnbench.judge.compare import load_records


def write(path, record):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(record.to_json())
    return path


def ids(loaded):
    return [record.run_id for record in loaded.records]


def test_a_file_a_folder_and_a_pattern(runs, tmp_path):
    for name in ("run10.json", "run9.json", "deep/er/run1.json"):
        write(tmp_path / name, runs(run_id=name))
    (tmp_path / "runs.csv").write_text("no JSON, and not called so")
    assert ids(load_records([tmp_path / "run9.json"])) == ["run9.json"]
    # Numbers in names by value: 9 before 10.
    assert ids(load_records([tmp_path])) == ["deep/er/run1.json", "run9.json", "run10.json"]
    assert ids(load_records([f"{tmp_path}/run*.json"])) == ["run9.json", "run10.json"]
    assert ids(load_records([f"{tmp_path}/**/run1.json"])) == ["deep/er/run1.json"]
    assert ids(load_records([f"{tmp_path}/d*"])) == ["deep/er/run1.json"]


def test_hidden_folders_are_read_unless_they_are_not_asked_for(runs, tmp_path):
    write(tmp_path / ".hidden" / "a.json", runs(run_id="a"))
    write(tmp_path / "b.json", runs(run_id="b"))
    assert sorted(ids(load_records([tmp_path]))) == ["a", "b"]
    assert ids(load_records([tmp_path], hidden=False)) == ["b"]


def test_a_record_counts_once_however_often_it_is_found(runs, reductions, tmp_path):
    record, reduced = runs(run_id="one"), reductions(6.0, run_id="two")
    for name, one in {"a": record, "b": record, "deep/c": reduced, "e": reduced}.items():
        write(tmp_path / f"{name}.json", one)
    os.symlink(tmp_path / "a.json", tmp_path / "link.json")
    loaded = load_records([tmp_path, tmp_path / "a.json"])
    assert (loaded.records, loaded.allreduces) == ((record,), (reduced,))
    assert loaded.all_records == (record, reduced)
    assert [str(one) for one in loaded.skipped] == [
        f"{tmp_path}/b.json: a second copy of run one",
        f"{tmp_path}/e.json: a second copy of run two",
    ]
    assert loaded.defects == ()


def test_progress_counts_the_files_that_were_read(runs, tmp_path):
    class Shown(ProgressLine):
        def __init__(self):
            self.calls = []

        def start(self, label, total):
            self.calls.append((label, total))

        def update(self, done):
            self.calls.append(done)

        def finish(self):
            self.calls.append("end")

    for name in ("a", "b", "c"):
        write(tmp_path / f"{name}.json", runs(run_id=name))
    shown = Shown()
    load_records([tmp_path], progress=shown)
    assert shown.calls == [("reading", 3), 0, 1, 2, "end"]


@pytest.mark.parametrize("first", ["cut", "whole"])
@pytest.mark.parametrize("status", ["ok", "interrupted"])
def test_the_most_complete_of_copies_that_differ_counts(runs, reductions, tmp_path, first, status):
    whole = runs(run_id="one", steps=12)
    cut = replace(
        whole, status=status, step_seconds=whole.step_seconds[:3], losses=whole.losses[:3]
    )
    reduced = reductions(6.0, 7.0, run_id="two")
    copies = {"cut": (cut, replace(reduced, points=reduced.points[:-1])), "whole": (whole, reduced)}
    names = sorted(copies, reverse=first == "whole")
    for folder, name in zip("ab", names, strict=True):
        for file, record in zip(("run", "reductions"), copies[name], strict=True):
            write(tmp_path / "both" / folder / f"{file}.json", record)
    loaded = load_records([tmp_path / "both"])
    assert (loaded.records, loaded.allreduces) == ((whole,), (reduced,))
    assert not loaded.defects
    assert all(one.differs for one in loaded.skipped)
    place, other = (tmp_path / "both" / "ab"[names.index(name)] for name in ("cut", "whole"))
    assert all(f"{other}/" in one.reason for one in loaded.skipped)
    assert {one.path for one in loaded.skipped} == {
        f"{place}/{file}.json" for file in ("run", "reductions")
    }


def test_faulty_files_are_named_with_the_reason_and_skipped(runs, reductions, tmp_path):
    good, reduced = runs(run_id="good"), reductions(6.0).to_dict()
    text = good.to_json()
    stopped = {**reduced["points"][0], "seconds": [0.002, 0.0]}
    contents = {
        "empty": "",
        "foreign": '{"name": "left-pad", "version": "1.0.0"}',
        "future": text.replace('"schema": 1', '"schema": 2', 1),
        "infinite": text.replace('"step_seconds": [', '"step_seconds": [NaN, ', 1),
        "lacking": json.dumps({k: v for k, v in json.loads(text).items() if k != "config"}),
        "list": "[1, 2]",
        "twice": text.replace('"schema": 1,', '"schema": 1, "schema": 1,', 1),
        "nested": "[" * 100_000,
        "text": "total images/sec: 8.00",
        "truncated": text[: len(text) // 2],
        "reduced in future": json.dumps({**reduced, "schema": 2}),
        "reduced, lacking": '{"schema": 1, "kind": "allreduce", "points": []}',
        "reduced, no time": json.dumps({**reduced, "started_at": "yesterday"}),
        "reduced, stopped clock": json.dumps({**reduced, "points": [stopped]}),
    }
    for name, content in contents.items():
        (tmp_path / f"{name}.json").write_text(content)
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "surrogate.json").write_text(r'{"schema": 1, "run_id": "x", "status": "\ud800"}')
    (tmp_path / "gone.json").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop.json").symlink_to(tmp_path / "loop.json")
    write(tmp_path / "good.json", good)
    loaded = load_records([tmp_path])
    assert loaded.all_records == (good,)
    assert loaded.defects == loaded.skipped
    reasons = {os.path.basename(one.path)[:-5]: one.reason for one in loaded.skipped}
    assert reasons == {
        "binary": "not JSON: not text in UTF-8",
        "empty": "empty",
        "foreign": "not a run record: schema: missing; this is not a cnnbench record",
        "future": "not a run record: schema: this version of cnnbench reads schema 1, not 2",
        "gone": "cannot be read: No such file or directory",
        "infinite": "not JSON: NaN",
        "lacking": "not a run record: config: missing",
        "list": "not a run record: record: expected an object, got list",
        "loop": "cannot be read: Too many levels of symbolic links",
        "nested": "not JSON: nested too deeply",
        "surrogate": "not a run record: started_at: missing",
        "text": "not JSON: Expecting value (line 1, column 1)",
        "twice": "not JSON: duplicate key 'schema'",
        "truncated": f"cut off after {len(text) // 2} characters",
        "reduced in future": "not an all-reduce measurement: schema: this version of cnnbench "
        "reads schema 1, not 2",
        "reduced, lacking": "not an all-reduce measurement: run_id: missing",
        "reduced, no time": "not an all-reduce measurement: started_at: 'yesterday' is not an ISO "
        "8601 time",
        "reduced, stopped clock": "not an all-reduce measurement: points[0].seconds: all "
        "times must be positive",
    }


def test_names_that_are_not_unicode_or_have_signs_of_a_pattern(runs, tmp_path):
    for number, name in enumerate((b"\xff\xfe.json", b"\xff/x.json", b"run[1].json")):
        write(tmp_path / os.fsdecode(name), runs(run_id=f"odd{number}"))
    assert sorted(ids(load_records([tmp_path]))) == ["odd0", "odd1", "odd2"]
    assert ids(load_records([tmp_path / "run[1].json"])) == ["odd2"]


@pytest.mark.parametrize("kind", ["comparison", "history", "banana"])
def test_documents_of_another_kind_are_no_defects(tmp_path, kind):
    (tmp_path / "x.json").write_text(json.dumps({"schema": 1, "kind": kind, "notes": []}))
    loaded = load_records([tmp_path])
    assert [str(one) for one in loaded.skipped] == [
        f"{tmp_path}/x.json: contains a document of the kind '{kind}', not a run record"
    ]
    assert loaded.defects == ()


@pytest.mark.parametrize("kind", [7, None, ["run"]])
def test_a_kind_that_is_no_text_is_a_defect(tmp_path, kind):
    (tmp_path / "x.json").write_text(json.dumps({"schema": 7, "kind": kind}))
    (defect,) = load_records([tmp_path]).defects
    assert defect.reason == f"not a run record: kind: {str(kind)!r} is not 'run'"


def test_folders_that_cannot_be_read_are_named(runs, tmp_path, unreadable):
    write(tmp_path / "good.json", runs(run_id="good"))
    write(tmp_path / "locked" / "secret.json", runs(run_id="secret"))
    unreadable(tmp_path / "locked")
    loaded = load_records([tmp_path])
    assert ids(loaded) == ["good"]
    assert [str(one) for one in loaded.defects] == [
        f"{tmp_path}/locked: cannot be read: Permission denied"
    ]
    assert load_records([tmp_path / "locked"]).defects == loaded.defects


def test_links_to_folders_are_followed_and_no_folder_is_read_twice(runs, tmp_path):
    write(tmp_path / "elsewhere" / "run.json", runs(run_id="linked"))
    write(tmp_path / "other" / "run.json", runs(run_id="other"))
    results = tmp_path / "results"
    write(results / "deep" / "run.json", runs(run_id="deep"))
    (results / "a").symlink_to(tmp_path / "elsewhere")
    (results / "b").symlink_to(tmp_path / "elsewhere")
    (results / "deep" / "back").symlink_to(results)
    loaded = load_records([results])
    assert ids(loaded) == ["linked", "deep"]
    assert loaded.skipped == ()
    (results / "up").symlink_to(tmp_path)
    loaded = load_records([results])
    assert ids(loaded) == ["linked", "deep"]
    assert [str(one) for one in loaded.skipped] == [
        f"{results}/up: a link to a folder that contains the link"
    ]
    assert loaded.defects == ()


def test_a_pipe_with_the_name_of_a_record_does_not_hang(runs, tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    write(tmp_path / "good.json", runs(run_id="good"))
    assert ids(load_records([tmp_path])) == ["good"]
    (found,) = load_records([tmp_path / "pipe.json"]).skipped
    assert found.reason == "cannot be read: is a pipe without a writer"


def test_what_is_not_there_is_wrong_use(tmp_path):
    with pytest.raises(UsageError, match="nowhere: no such file or folder"):
        load_records([tmp_path / "nowhere"])
    with pytest.raises(UsageError, match=r"\*\.json: no file matches this pattern"):
        load_records([f"{tmp_path}/*.json"])
    assert load_records([tmp_path]).records == ()


def test_repr_is_one_line(runs, tmp_path):
    write(tmp_path / "a.json", runs(run_id="one"))
    (tmp_path / "b.json").write_text("{")
    loaded = load_records([tmp_path])
    assert repr(loaded) == "<Loaded: 1 run, 0 all-reduce runs, 1 skipped file>"
    assert repr(loaded.records[0]).startswith("<RunRecord: one, ")
