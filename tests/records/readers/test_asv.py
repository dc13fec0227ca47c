"""Results of asv: environments, versions and commit dates stay what they are."""

from __future__ import annotations

import json

import pytest
from imports import IMPORTS, benchmark_rows, file_rows, read

from cnnbench.records.readers import read_results

COLUMNS = ["result", "params", "version", "started_at"]
DAY = 86_400_000


def results(commit="a" * 40, *, day=0, seconds=1.0, run_day=None, version="v1", **more):
    """A file of asv: a benchmark without parameters."""
    return {
        **{"commit_hash": commit, "date": 1_700_000_000_000 + day * DAY, "python": "3.11"},
        **{"params": {"machine": "m", "cpu": "Fast", "num_cpu": "2"}, "env_name": "py3.11"},
        **{"requirements": {}, "env_vars": {}, "result_columns": COLUMNS},
        "results": {
            "b.time_sum": [
                *([seconds], [], version),
                1_720_000_000_000 + (day if run_day is None else run_day) * DAY,
            ]
        },
        **more,
    }


def commits(call, folder):
    out = call("history", folder, "--metric=benchmark_seconds", "--format=json").out
    return [
        [point["commit"][0] for point in series["points"]] for series in json.loads(out)["series"]
    ]


@pytest.fixture
def imported(call, tmp_path):
    """imported(DOCUMENT...): the folder with the records of files of asv."""

    def imported(*documents, to="results"):
        folder = tmp_path / f"{to}-files"
        folder.mkdir()
        for number, document in enumerate(documents):
            (folder / f"{number}.json").write_text(json.dumps(document))
        call("import", folder, f"--results={tmp_path / to}")
        return tmp_path / to

    return imported


def test_a_file_of_asv():
    commit = "27c3f1fc478d3a8b30f1c0edeaff59c085185729"
    found = [
        *(
            ("b.Suite.time_sum 10", 4.859000910073519e-06),
            ("b.Suite.time_sum 1000", 1.7934005882e-05),
        ),
        *(("b.mem_dict", 4688), ("b.peakmem_list", 31109120), ("b.time_sort", 4.608999006e-06)),
        ("b.track_size", 42),
    ]
    found = [(name, pytest.approx(value), commit) for name, value in found]
    assert file_rows("asv.json") == (found, ["'b.time_fails' failed or was not run"])
    records, _ = read_results(str(IMPORTS / "asv.json"))
    assert [one.imported.part for one in records] == [*range(1, len(records) + 1)]
    assert [one.imported.kind for one in records][1:] == [
        *("benchmark_seconds", "benchmark_bytes", "benchmark_bytes", "benchmark_seconds"),
        "benchmark_number",
    ]
    assert records[0].subject.committed_at == "2026-11-28T06:38:50+00:00"
    assert records[0].started_at == "2026-11-28T06:38:52.621000+00:00"


def test_another_environment_is_another_series(call, imported):
    changes = [
        *({}, {"version": "v2"}, {"python": "3.12"}, {"env_name": "conda-py3.11"}),
        *({"requirements": {"numpy": version}} for version in ("", "1.26", "2.0")),
        {"env_vars": {"OMP_NUM_THREADS": "1"}},
    ]
    files = [results(str(day) * 40, day=day, **change) for day, change in enumerate(changes)]
    assert sorted(commits(call, imported(*files))) == [[str(day)] for day in range(8)]


def test_environments_are_not_compared(call, imported):
    sides = imported(results(), to="a"), imported(results(version="v2"), to="b")
    out = " ".join(call("compare", *sides, code=3).out.split())
    assert "Not comparable: benchmark_version is v1 in BASE and v2 in NEW" in out


def test_commits_are_in_the_order_of_their_dates(call, imported):
    # asv measures a range of commits newest first.
    files = [
        results(str(day) * 40, day=day, run_day=9 - day, seconds=1.0 if day < 5 else 2.0)
        for day in range(10)
    ]
    folder = imported(*files)
    assert commits(call, folder) == [[*"0123456789"]]
    out = call("history", folder, "--metric=benchmark_seconds", "--fail_on=step", code=1).out
    assert "worse: +100.0 %" in out


def test_the_repository_has_priority_over_commit_dates(call, git, imported, tmp_path):
    git(tmp_path, "init", "-q", "repo")
    made = []
    for number in range(3):
        git(tmp_path / "repo", "commit", "-q", "--allow-empty", "-m", str(number))
        made.append(git(tmp_path / "repo", "rev-parse", "HEAD"))
    # The dates contradict the repository, as after a rebase.
    folder = imported(*(results(commit, day=-day) for day, commit in enumerate(made)))
    of = ("--metric=benchmark_seconds", "--format=json")
    for more, expected in (((), made[::-1]), ([f"--git={tmp_path / 'repo'}"], made)):
        (series,) = json.loads(call("history", folder, *of, *more).out)["series"]
        assert [point["commit"] for point in series["points"]] == expected


@pytest.mark.parametrize("processor", ["Fast", ""])
def test_machines_of_unknown_processors_are_told_apart_by_name(call, imported, processor):
    files = [
        results(commit * 40, seconds=seconds, params={"machine": name, "cpu": processor})
        for commit in "abcdef"
        for name, seconds in (("one", 1.0), ("two", 2.0))
    ]
    folder = imported(*files)
    assert [len(series) for series in commits(call, folder)] == ([6] if processor else [6, 6])
    if not processor:
        sides = [imported(file, to=f"side-{side}") for side, file in enumerate(files[:2])]
        out = " ".join(call("compare", *sides, code=3).out.split())
        assert "Not comparable: hostname is one in BASE and two in NEW" in out


def test_a_folder_of_a_machine_is_complete(call, tmp_path):
    machine = {"arch": "x86_64", "cpu": "Fast", "machine": "m", "num_cpu": "2", "os": "Linux"}
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "machine.json").write_text(json.dumps({**machine, "ram": "8", "version": 1}))
    (tmp_path / "m" / "a.json").write_text(json.dumps(results()))
    described = {"b.time_sum": {"code": "...", "type": "time", "unit": "seconds"}, "version": 2}
    (tmp_path / "benchmarks.json").write_text(json.dumps(described))
    for folder in (tmp_path, tmp_path / "m"):
        err = call("import", folder, f"--results={tmp_path}/r", "--strict", "--dry_run").err
        assert err == ""


def test_the_first_version_of_the_format(tmp_path):
    document = {
        **{"commit_hash": "c" * 40, "date": 1_500_000_000_000, "version": 1},
        **{"python": "2.7", "requirements": {"six": ""}, "params": {"machine": "m"}},
        "results": {
            "b.time_old": 0.25,
            "b.time_list": {"result": [0.5], "params": [], "stats": [None]},
            "b.time_with": {"result": [1.0, None, 3.0], "params": [["1", "2", "3"]]},
            "b.time_failed": None,
        },
        **{
            "started_at": {"b.time_list": 1_500_000_100_000},
            "benchmark_version": {"b.time_old": 7},
        },
    }
    records, reasons = read(tmp_path, document)
    assert benchmark_rows(records) == [
        *(("b.time_old", 0.25, "c" * 40), ("b.time_list", 0.5, "c" * 40)),
        *(("b.time_with 1", 1.0, "c" * 40), ("b.time_with 3", 3.0, "c" * 40)),
    ]
    assert reasons == ["'b.time_with' has no value: None", "'b.time_failed' failed or was not run"]
    assert records[0].environment == {
        **{"hostname": "m", "python_version": "2.7", "requirement_six": "any"},
        "benchmark_version": 7,
    }
    # A benchmark without a time has that of the commit.
    assert [one.started_at for one in records[:2]] == [
        *("2017-07-14T02:40:00+00:00", "2017-07-14T02:41:40+00:00")
    ]


def test_a_label_with_another_commit_removes_the_date_of_the_commit(tmp_path):
    (record,), _ = read(tmp_path, results(results={"b.time_sum": [[1.0]]}), labels="commit=abc")
    assert record.subject.committed_at is None
    assert record.started_at > "2025"


def test_values_for_which_higher_is_better(call, imported, tmp_path):
    columns = [[0.9], [], "v1", 1_720_000_000_000]
    (tmp_path / "a.json").write_text(json.dumps(results(results={"b.track_accuracy": columns})))
    to = f"--results={tmp_path}/r"
    err = call("import", tmp_path / "a.json", to, "--higher_is_better=b.track_acuracy", code=2).err
    assert "--higher_is_better=b.track_acuracy: no imported benchmark; did you mean" in err
    call("import", tmp_path / "a.json", to, "--higher_is_better=*accuracy")
    out = call("history", tmp_path / "r", "--metric=benchmark_score").out
    assert "higher is better" in out
    assert "0.9000" in out


@pytest.mark.parametrize("time", [1e30, float("inf"), -1.0, "yesterday", {}])
def test_times_that_are_none_are_named(tmp_path, time):
    document = results(results={"b.time_sum": [[1.0], [], "v1", time]}, date=time)
    (record,), reasons = read(tmp_path, document)
    assert reasons
    assert all(reason.endswith(" is not a time") for reason in reasons)
    assert record.subject.committed_at is None
    assert "started_at" in record.imported.unknown
