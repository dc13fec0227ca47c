"""How the reader of a file is found, and what is common to all readers."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from imports import IMPORTS, read

from cnnbench.errors import UsageError
from cnnbench.records.readers import READERS, load_readers, read_results, register_reader

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
    load_readers()
    own = {name for name, one in READERS.items() if one.read.__module__.startswith("cnnbench.")}
    for table in (first, second):
        rows = [line.split("|")[1] for line in table.partition("\n\n")[0].splitlines()[2:]]
        assert own == {name for row in rows for name in re.findall("`(.+?)`", row)}


def test_a_reader_has_a_pattern_or_a_function():
    with pytest.raises(UsageError, match="either a pattern or fits= must be given"):
        register_reader("nothing")(lambda file: ())
