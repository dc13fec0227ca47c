"""How the reader of a file is found, and what is common to all readers.

Tests cnnbench/records/readers/__init__.py.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from imports import IMPORTS, TRAINING, read

from cnnbench.errors import UsageError
from cnnbench.records.readers import (
    LONGEST_LINE,
    READERS,
    ReadOptions,
    ResultFile,
    has_keys,
    is_amount,
    mean_or_invalid,
    parse_json_object,
    read_results,
    register_reader,
    scalars,
    time_text,
)

FILES = pytest.mark.parametrize("path", sorted(IMPORTS.glob("*.json")), ids=lambda path: path.stem)


@FILES
def test_white_space_and_the_order_of_keys_do_not_matter(path, tmp_path):
    document = json.loads(path.read_text())
    expected = [one.imported.values for one in read_results(str(path))[0]]
    for layout in ({"separators": (",", ":")}, {"indent": 4}, {"sort_keys": True}):
        records, _ = read(tmp_path, json.dumps(document, **layout))
        assert sorted(map(str, expected)) == sorted(str(one.imported.values) for one in records)


@FILES
def test_incomplete_json_is_named(path, tmp_path):
    document = json.loads(path.read_text())
    rows = document.get("results") or document["benchmarks"]
    if isinstance(rows, list):
        rows[0] = {}
    else:
        document.pop("commit_hash", None)
    for text in (path.read_text()[:-20], json.dumps(document, indent=1)):
        records, reasons = read(tmp_path, text)
        assert not records
        assert reasons[-1].startswith(("is not a complete file of", "no reader knows"))


def test_what_is_wrong_with_json_is_said(tmp_path):
    records, reasons = read(tmp_path, '{"results": [{"command": "a"')
    assert not records
    assert reasons == ["no reader knows this kind of file: cut off after 28 characters"]
    assert read(tmp_path, '{"a": 1}')[1] == ["no reader knows this kind of file"]


def test_a_file_without_a_result_is_named(tmp_path):
    records, (reason,) = read(tmp_path, "run_id,started_at,status,model,flags\n")
    assert not records
    assert "result_csv" in reason


def test_a_second_import_with_another_label_replaces(call, tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"results": [{"command": "a", "times": [1.0]}]}))
    to = f"--results={tmp_path}/r"
    call("import", tmp_path / "a.json", to, "--label=commit=one")
    os.utime(tmp_path / "a.json", (1, 1))
    err = call("import", tmp_path / "a.json", to, "--label=commit=one").err
    assert "0 records written" in err
    assert "1 were there already" in err
    err = call("import", tmp_path / "a.json", to, "--label=commit=two").err
    assert "0 records written" in err
    assert "1 replaced, because they were different" in err
    out = call("history", tmp_path / "r", "--metric=benchmark_seconds", "--format=json").out
    (series,) = json.loads(out)["series"]
    assert [one["commit"] for one in series["points"]] == ["two"]


def test_the_page_says_what_each_reader_does():
    page = (Path(__file__).parents[3] / "docs" / "integrations.md").read_text()
    first, second = page.split("| reader | ")[1:]
    READERS.load_own()
    own = {name for name, one in READERS.items() if one.read.__module__.startswith("cnnbench.")}
    for table in (first, second):
        rows = [line.split("|")[1] for line in table.partition("\n\n")[0].splitlines()[2:]]
        listed = {name for row in rows for name in re.findall("`(.+?)`", row)}
        assert not own - listed, f"docs/integrations.md needs rows in both tables: {own - listed}"
        assert listed <= own


def test_a_reader_has_a_pattern_or_a_function():
    with pytest.raises(UsageError, match="either a pattern or fits= must be given"):
        register_reader("nothing")(lambda file: ())


@pytest.mark.parametrize(
    ("time", "text"),
    [
        ("2024-05-01T10:00:00Z", "2024-05-01T10:00:00+00:00"),
        ("2024-05-01 10:00:00.5", "2024-05-01T10:00:00.500000+00:00"),
        ("2024-05-01T10:00:00.123456789+02:00", "2024-05-01T10:00:00.123456+02:00"),
        (1.5, "1970-01-01T00:00:01.500000+00:00"),
        ("yesterday", ""),
        ("0001-01-01T00:00:00+10:00", ""),  # before the year 1 in UTC
        (-1.0, ""),
        (1e300, ""),
        (True, ""),
        (None, ""),
    ],
)
def test_times_of_files(time, text):
    assert time_text(time) == text


def test_values_of_files():
    assert [is_amount(value) for value in (1, 0.5, True, "1", 0.0, -1.0, float("nan"), None)] == [
        *(True, True, False, False, False, False, False, False)
    ]
    assert mean_or_invalid([1.0, 3]) == 2.0
    assert mean_or_invalid([1.0, "3", -1]) == "3"
    assert mean_or_invalid([]) is None
    assert [parse_json_object(text) for text in ('{"a": 1}', "[1]", "{")] == [{"a": 1}, None, None]
    mixed = {"a": 1, "b": "t", "c": True, "d": 0.5, "e": None, "f": [1]}
    assert dict(scalars(mixed)) == {"a": 1, "b": "t", "c": True, "d": 0.5, "f": "[1]"}
    assert dict(scalars({"a": {"y": 1, "x": [None]}})) == {"a": '{"x": [null], "y": 1}'}
    assert [*scalars([1])] == []


@pytest.mark.parametrize(
    ("document", "fits"),
    [
        ({"a": {"b": 1}, "c": None}, True),
        ({"a": [{"b": 1}, {}], "c": 0}, True),
        ([{"a": {"b": 1}, "c": 0}], True),
        ({"a": {"b": 1}}, False),
        ({"a": [], "c": 0}, False),
        ({"a": "b", "c": 0}, False),
        ([], False),
    ],
)
def test_a_document_is_known_by_its_keys(document, fits):
    assert has_keys("a.b", "c")(document) is fits


def benchmark(file, value=2.0, unit="ms", **more):
    return [*file.benchmark("prog", "b", value, unit, 1, **more)]


@pytest.fixture
def file(tmp_path):
    (tmp_path / "a.json").write_text("")
    os.utime(tmp_path / "a.json", (1, 1))
    return ResultFile(str(tmp_path / "a.json"), b"", ReadOptions(higher_is_better=("rate*",)))


@pytest.mark.parametrize(
    ("unit", "kind", "value"),
    [
        ("s", "benchmark_seconds", 2.0),
        ("ms", "benchmark_seconds", 2e-3),
        ("us", "benchmark_seconds", 2e-6),
        ("ns", "benchmark_seconds", 2e-9),
        ("B", "benchmark_bytes", 2.0),
        ("bytes", "benchmark_bytes", 2.0),
        ("", "benchmark_number", 2.0),
        ("lines", "benchmark_number", 2.0),
    ],
)
def test_the_unit_of_a_benchmark_is_its_kind(file, unit, kind, value):
    (record,) = benchmark(file, unit=unit)
    assert record.imported.values == {kind: pytest.approx(value)}
    assert record.environment == ({"unit": unit} if unit == "lines" else {})
    # A score keeps its value, and its unit is no property of its kind.
    (record,) = benchmark(file, unit=unit, higher_is_better=True)
    assert record.imported.values == {"benchmark_score": 2.0}
    assert record.environment == ({"unit": unit} if unit else {})


def test_a_benchmark_has_what_is_known_of_it(file):
    (record,) = benchmark(
        file,
        position=2,
        parameters={"n": 1},
        environment={"hostname": "h", "cpu_model": None, "platform": ""},
    )
    assert record.config == {
        **{"benchmark": "b", "parameter_n": "1", "position": 2, "imported_from": "prog"}
    }
    assert record.environment == {"hostname": "h"}
    assert record.started_at == "1970-01-01T00:00:01+00:00"
    assert record.imported.unknown == ("started_at",)
    (record,) = benchmark(file, started_at=2.0)
    assert (record.started_at[18:19], record.imported.unknown) == ("2", ())
    assert "position" not in record.config


def test_a_value_that_is_no_amount_is_named(file):
    assert benchmark(file, value=None) == []
    assert [str(one) for one in file.skipped] == [f"{file.path}: 'b' has no value: None"]
    benchmark(file, value=None)
    assert len(file.skipped) == 1


def test_equal_names_have_positions(file):
    positions = [file.position(name, of) for name, of in (("a", None), ("b", None), ("a", None))]
    assert positions == [1, 1, 2]
    assert file.position("a", {"n": 1}) == 1


def test_lines_that_are_skipped_are_those_of_the_record_behind_them(file):
    file.skip(3, "x")
    file.skip(2, "y")
    file.skip(4, "z", is_foreign=True)
    file.skip(0, "w")
    first, second = (benchmark(file)[0] for _ in range(2))
    assert (first.imported.skipped_lines, second.imported.skipped_lines) == ((2, 3), ())


def test_runs_of_unknown_networks_are_different_configurations(file):
    known = file.run("prog", {"model": "lenet"})
    assert "model_of_file" not in known.config
    first, second = (file.run("prog", {"model": None}, part=part) for part in (1, 2))
    assert first.config["model_of_file"] != second.config["model_of_file"]
    assert first.config["model_of_file"].startswith(file.sha256[:12])


def test_the_longest_texts_that_are_quoted_and_the_longest_line(file, tmp_path):
    file.skip(1, "x" * 60)
    file.skip(2, "x" * 61)
    first, second = file.skipped
    assert ("..." in first.reason, "..." in second.reason) == (False, True)
    (tmp_path / "log").write_text("")
    whole = "y" * LONGEST_LINE
    kept = ResultFile(str(tmp_path / "log"), f"x\n{whole}\n{whole}y\nz".encode())
    assert [*kept.lines] == [(1, "x"), (2, whole), (3, ""), (4, "z")]
    assert [one.line for one in kept.skipped] == [3]


def test_words_for_numbers_that_are_no_numbers():
    text = b'{"a": [inf, -inf, nan, 1], "b": "inf"}'
    document = ResultFile("a.json", text).json()
    assert str(document) == "{'a': [inf, -inf, nan, 1], 'b': 'inf'}"
    with pytest.raises(ValueError, match="column 7"):
        ResultFile("a.json", b'{"a": information}').json()


def test_a_line_that_is_too_long_is_named(tmp_path):
    for line in ("x" * (LONGEST_LINE + 1), "1\timages/sec: " + "1" * LONGEST_LINE):
        (record,), (reason,) = read(tmp_path, f"{TRAINING}{line}\n")
        assert reason.endswith(f" has more than {LONGEST_LINE:,} characters")
        last = len(TRAINING.splitlines()) + 1
        assert (record.status, record.imported.skipped_lines) == ("ok", (last,))


EXPORTED = '{"results": [{"command": "sleep", "times": [0.5, 0.6], "exit_codes": [0, 0]}]}'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"results": ' + "[" * 100_000 + "}", "not JSON: nested too deeply"),
        ('{"results": [', "cut off after 13 characters"),
        (EXPORTED.replace('"command"', '"command": 1, "command"', 1), "duplicate key"),
        (EXPORTED.replace("0.5", "1" + 400 * "0"), "'sleep' has no value: inf"),
        (EXPORTED.replace("0.5", "1e308"), "'sleep' has no value: 1e+308"),
        (
            '{"name": "current_examples_per_sec", "value": 5.0, "global_step": 1, '
            '"timestamp": "yesterday"}',
            "'yesterday' is not a time",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path, text, reason):
    assert any(reason in one for one in read(tmp_path, text)[1])


def test_labels_are_added_to_the_record_of_a_run(file, runs):
    run = runs(None)
    assert file.own_run(run).config == run.config
    labelled = ResultFile(file.path, b"", ReadOptions(labels="commit=abc"))
    record = labelled.own_run(run, 2)
    assert record.config == {**run.config, "result_label": "commit=abc"}
    assert (record.subject.revision, record.imported.part) == ("abc", 2)
