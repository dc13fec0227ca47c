"""How the reader of a file is found, and what is common to all readers.

Tests cnnbench/records/readers/__init__.py.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from imports import TRAINING, read

from cnnbench.errors import UsageError
from cnnbench.records.readers import (
    LONGEST_LINE,
    READERS,
    ResultFile,
    is_amount,
    parse_json_object,
    read_results,
    register_reader,
    time_text,
)

LOGGED = """\
{"name": "current_examples_per_sec", "global_step": 1, "value": 5.0, \
"timestamp": "2024-01-02T03:04:05Z"}
"""


def test_a_file_of_another_kind_is_named(tmp_path):
    assert read(tmp_path, '{"results": [') == ((), ["no reader knows this kind of file"])


INSTALLER = "Collecting numpy>=1.26 (from cnnbench)\n" * 3000
"""More than the 64 KiB in which patterns are searched."""

FORMS = {
    "header": TRAINING,
    "launcher": "".join(f"[1,0]<stdout>:{line}\n" for line in TRAINING.splitlines()),
    "rows": "1\timages/sec: 8.0 +/- 0.0 (jitter = 0.0)\t2.5\n",
    "spaces": "1      images/sec: 8.0 +/- 0.0 (jitter = 0.0)\t2.5\n",
    "total": f"{TRAINING.partition('Model:')[2]}",
    "metrics": LOGGED,
}


@pytest.mark.parametrize("form", FORMS)
def test_a_log_is_recognised_behind_any_number_of_other_lines(form, tmp_path):
    alone, _ = read(tmp_path, FORMS[form])
    behind, reasons = read(tmp_path, INSTALLER + FORMS[form])
    assert "no reader knows this kind of file" not in reasons
    assert len(behind) == len(alone) == 1
    (one,), (other,) = alone, behind
    for record in (one, other):
        assert record.imported.values or record.imported.printed
    assert (one.imported.values, one.imported.printed) == (
        other.imported.values,
        other.imported.printed,
    )
    assert (one.config.keys(), one.batch, one.status) == (
        other.config.keys(),
        other.batch,
        other.status,
    )


@pytest.mark.parametrize(
    "line",
    [
        'print("1\timages/sec: 8.0 +/- 0.0")',
        "x" * 300 + " Model:       lenet",
        "mean images/sec: 12.5",
        'INFO: {"global_step": 5}',
    ],
)
def test_a_line_that_does_not_begin_as_in_a_log_is_not_recognised(line, tmp_path):
    for before in ("", INSTALLER):
        assert read(tmp_path, f"{before}{line}\n") == ((), ["no reader knows this kind of file"])
    heading = "run_id,started_at,status,model,flags\n"  # Only at the beginning of a table.
    assert read(tmp_path, f"{INSTALLER}{heading}")[1] == ["no reader knows this kind of file"]


PLUGIN = """
from cnnbench.records.readers import register_reader

def is_anywhere(data):
    return data.endswith(b"own\\n") or bool(1 / (b"fault" not in data))

@register_reader("own", b"^own$", is_anywhere)
def read(file):
    yield file.run("own", {"model": "lenet"}, values={"throughput": 2.0})
"""


def test_a_reader_of_a_plug_in_may_look_anywhere(call, tmp_path):
    (tmp_path / "own.py").write_text(PLUGIN)
    words = ("import", f"--plugin={tmp_path}/own.py", f"--results={tmp_path}/r", tmp_path / "a.log")
    for text, code in (("own\n", 0), (f"{INSTALLER}own\n", 0), ("fault\n", 3)):
        (tmp_path / "a.log").write_text(text)
        call(*words, code=code)
    (tmp_path / "a.log").write_text(f"{INSTALLER}fault\n")
    done = call(*words, code=2)
    assert "own.py:5: is_anywhere(): ZeroDivisionError" in done.err


def test_a_file_without_a_result_is_named(tmp_path):
    records, (reason,) = read(tmp_path, "run_id,started_at,status,model,flags\n")
    assert not records
    assert "result_csv" in reason


def test_a_file_of_another_form_is_named(tmp_path):
    path = tmp_path / "benchmark_run.log"
    path.write_text('{"run_parameters": [1], "run_date": ""}')
    (tmp_path / "metric.log").write_text(LOGGED)
    records, (skipped,) = read_results(str(path))
    assert not records
    assert skipped.reason.startswith("is not a complete file of benchmark_log_dir: TypeError: ")


def test_a_second_import_with_another_label_replaces(call, tmp_path):
    (tmp_path / "a.log").write_text(TRAINING)
    to = f"--results={tmp_path}/r"
    call("import", tmp_path / "a.log", to, "--label=commit=one")
    os.utime(tmp_path / "a.log", (1, 1))
    err = call("import", tmp_path / "a.log", to, "--label=commit=one").err
    assert "0 records written" in err
    assert "1 were there already" in err
    err = call("import", tmp_path / "a.log", to, "--label=commit=two").err
    assert "0 records written" in err
    assert "1 replaced, because they were different" in err
    out = call("history", tmp_path / "r", "--format=json").out
    (series,) = json.loads(out)["series"]
    assert [one["commit"] for one in series["points"]] == ["two"]


def test_the_page_says_what_each_reader_does():
    page = (Path(__file__).parents[3] / "docs" / "integrations.md").read_text()
    READERS.load_own()
    own = {name for name, one in READERS.items() if one.read.__module__.startswith("cnnbench.")}
    table = page.partition("| reader | ")[2].partition("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines()[2:]]
    assert {name for row in rows for name in re.findall("`(.+?)`", row)} == own


@pytest.mark.parametrize("pattern", [None, "text", b"("])
def test_a_pattern_is_a_regular_expression_of_bytes(pattern):
    with pytest.raises(UsageError, match=r"^reader 'own': .* is not a regular expression: "):
        register_reader("own", pattern)(lambda file: ())


@pytest.mark.parametrize(
    ("time", "text"),
    [
        ("2024-05-01T10:00:00Z", "2024-05-01T10:00:00+00:00"),
        ("2024-05-01 10:00:00.5", "2024-05-01T10:00:00.500000+00:00"),
        ("2024-05-01T10:00:00.123456789+02:00", "2024-05-01T10:00:00.123456+02:00"),
        ("yesterday", ""),
        ("0001-01-01T00:00:00+10:00", ""),  # before the year 1 in UTC
        ("", ""),
    ],
)
def test_times_of_files(time, text):
    assert time_text(time) == text


def test_values_of_files():
    assert [is_amount(value) for value in (1, 0.5, True, "1", 0.0, -1.0, float("nan"), None)] == [
        *(True, True, False, False, False, False, False, False)
    ]
    assert [parse_json_object(text) for text in ('{"a": 1}', "[1]", "{")] == [{"a": 1}, None, None]


@pytest.fixture
def file(tmp_path):
    (tmp_path / "a.json").write_text("")
    os.utime(tmp_path / "a.json", (1, 1))
    return ResultFile(str(tmp_path / "a.json"), b"")


def test_a_run_has_what_is_known_of_it(file):
    record = file.run("prog", {"model": "lenet"}, environment={"hostname": "h"})
    known = {name: value for name, value in record.config.items() if value is not None}
    assert known == {"model": "lenet", "imported_from": "prog"}
    assert record.environment == {"hostname": "h"}
    assert record.started_at == "1970-01-01T00:00:01+00:00"
    assert record.imported.unknown == ("started_at",)
    record = file.run("prog", {"model": "lenet"}, started_at="1970-01-01 00:00:02")
    assert (record.started_at[18:19], record.imported.unknown) == ("2", ())


def test_what_is_wrong_is_said_once(file):
    for _ in range(2):
        file.skip(0, "b", "has no value")
    assert [str(one) for one in file.skipped] == [f"{file.path}: 'b' has no value"]


def test_lines_that_are_skipped_are_those_of_the_record_behind_them(file):
    file.skip(3, "x")
    file.skip(2, "y")
    file.skip(4, "z", is_foreign=True)
    file.skip(0, "w")
    first, second = (file.run("prog", {"model": "lenet"}) for _ in range(2))
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


def test_a_line_that_is_too_long_is_named(tmp_path):
    for line in ("x" * (LONGEST_LINE + 1), "1\timages/sec: " + "1" * LONGEST_LINE):
        (record,), (reason,) = read(tmp_path, f"{TRAINING}{line}\n")
        assert reason.endswith(f" has more than {LONGEST_LINE:,} characters")
        last = len(TRAINING.splitlines()) + 1
        assert (record.status, record.imported.skipped_lines) == ("ok", (last,))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("[" * 100_000, "is not understood"),
        ("5.0", ""),
        ("1" + 400 * "0", "is not a speed"),
        ("1e308", "is not a speed"),
        ('5.0, "name": "b"', "is not understood"),
        ('5.0, "timestamp": "yesterday"', "is not understood"),
    ],
)
def test_what_is_wrong_with_a_value_is_said(tmp_path, value, reason):
    found = read(tmp_path, LOGGED.replace("5.0", value))[1]
    assert [one.rpartition("' ")[2] for one in found] == [*filter(None, [reason])]


def test_a_time_that_is_none_is_named(tmp_path):
    text = LOGGED.replace("2024-01-02T03:04:05Z", "yesterday")
    assert read(tmp_path, text)[1] == ["'yesterday' is not a time"]


def test_labels_are_added_to_the_record_of_a_run(file, runs):
    run = runs(None)
    assert file.own_run(run).config == run.config
    labelled = ResultFile(file.path, b"", "commit=abc")
    record = labelled.own_run(run, 2)
    assert record.config == {**run.config, "result_label": "commit=abc"}
    assert (record.subject.revision, record.imported.part) == ("abc", 2)
