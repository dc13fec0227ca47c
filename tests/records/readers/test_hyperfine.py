"""Results of hyperfine."""

from __future__ import annotations

import json

from imports import benchmark_rows, content, file_rows, read


def test_files_of_hyperfine():
    found = [
        (one["command"], seconds, None)
        for one in content("hyperfine.json")["results"]
        for seconds in one["times"]
    ]
    assert file_rows("hyperfine.json") == (found, [])
    names = [name for name, *_ in file_rows("hyperfine_parameters.json")[0]]
    assert names == ["wait-1 1"] * 3 + ["wait-2 2"] * 3
    records, reasons = file_rows("hyperfine_failed.json")
    assert records == []
    assert reasons[0] == "'exit 1' failed with exit code 1 (run 1)"


def test_results_of_a_file_are_counted(tmp_path):
    results = [{"command": name, "times": [1.0, 2.0], "exit_codes": [0, 0]} for name in "ab"]
    records, _ = read(tmp_path, {"results": results})
    assert [one.imported.part for one in records] == [1, 2, 3, 4]


def test_a_process_that_was_killed_has_no_value(tmp_path):
    result = {"command": "a", "times": [0.2, 1.0, 1.1], "exit_codes": [None, 0, 137]}
    records, reasons = read(tmp_path, {"results": [result]})
    assert benchmark_rows(records) == [("a", 1.0, None)]
    assert reasons == ["'a' was killed (run 1)", "'a' failed with exit code 137 (run 3)"]


def test_a_command_that_was_measured_twice_is_not_averaged(call, tmp_path):
    results = [{"command": "a", "times": [seconds] * 3} for seconds in (1.0, 5.0)]
    (tmp_path / "a.json").write_text(json.dumps({"results": results}))
    call("import", tmp_path / "a.json", f"--results={tmp_path}/r", "--label=commit=abc")
    out = call("history", tmp_path / "r", "--metric=benchmark_seconds", "--format=json").out
    found = {one["configuration"]: one["points"][0]["value"] for one in json.loads(out)["series"]}
    assert found == {"a, from hyperfine": 1.0, "a, from hyperfine, position=2": 5.0}


def test_a_file_without_times_says_so(call, tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"results": [{"command": "a", "times": [1.0]}]}))
    err = call("import", tmp_path / "a.json", f"--results={tmp_path}/r").err
    assert "a.json: no time of the run; the time of the file's last change is used" in err
