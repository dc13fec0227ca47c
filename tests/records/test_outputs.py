"""Files of results: what may be replaced, and what is refused before the work.

Tests cnnbench/records/files.py and cnnbench/records/codec.py.
"""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from cnnbench.base.charts import Axis, DistributionRow, RowChart
from cnnbench.base.charts.draw import FORMATS, render_chart_file
from cnnbench.errors import FlagError
from cnnbench.records.codec import load_documents
from cnnbench.records.files import KINDS, OutputFile, check_outputs, is_replaceable
from cnnbench.records.measurements import Measurements
from cnnbench.records.result_files import REDUCTIONS, RUNS

load_documents()  # all commands, which declare what they write

TESTS = Path(__file__).parents[1]
GOLDEN = {
    "table of comparison": "judge/report/renderers/golden/table.txt",
    "markdown": "judge/report/renderers/golden/comment.md",
    "junit": "judge/report/renderers/golden/junit.xml",
    "github": "judge/report/renderers/golden/annotations.txt",
    "comparison": "judge/report/renderers/golden/comparison.json",
    "bencher": "judge/report/exports/golden/bencher.json",
    "github-action-benchmark": "judge/report/exports/golden/github-action-benchmark.json",
    "mlflow": "judge/report/exports/golden/mlflow.json",
    "openmetrics": "judge/report/exports/golden/openmetrics.txt",
    ".md": "judge/report/golden/report.md",
    "table of history": "judge/history/golden/table.txt",
    "history": "judge/history/golden/history.json",
    "allreduce": "frozen/allreduce.json",
}
SAME = ({"html", ".html"}, {"csv", ".csv"}, {"markdown", ".md"})


def picture(format):
    row = DistributionRow(
        label="a", values=((1.0, "one"),), centre=1.0, low=None, high=None, text="1"
    )
    return render_chart_file(
        [RowChart(title="t", x=Axis(label="x"), rows=(row,))], format, "a chart"
    )


@pytest.fixture(scope="module")
def samples():
    found = {name: (TESTS / path).read_bytes() for name, path in GOLDEN.items()}
    found |= {f".{format}": picture(format) for format in FORMATS}
    found["run"] = Measurements(command=["cnnbench"], config={}).make_record().to_json().encode()
    found["csv"] = ",".join(RUNS.columns).encode()
    return found


def test_every_kind_is_told_from_all_others(samples):
    for name, content in samples.items():
        kinds = {kind for kind, is_ours in KINDS.items() if is_ours(content)}
        assert name in kinds
        assert kinds in ({name}, *SAME)


FOREIGN = [
    b"import cnnbench\n",
    b"# Notes\n\nSome cnnbench numbers.\n",
    b"<!doctype html><title>my page</title>",
    b"name,value\n1,2\n",
    b'{"a": 1}',
    b"[1, 2]",
    b"{",
    b"\x89PNG\r\n\x1a\nphoto",
    b"%PDF-1.7 a paper",
    b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"></svg>',
    b"\nmodel: resnet50\n",
    gzip.compress(b"a log"),
    b"\x1f\x8bno gzip",
    b"\xff\xfe\x00",
    b"[" * 100_000,
]


@pytest.mark.parametrize("kind", KINDS)
def test_no_other_file_is_replaced(kind, tmp_path):
    target = tmp_path / "file"
    for content in FOREIGN:
        target.write_bytes(content)
        assert not is_replaceable(target, KINDS[kind])
    for content in (b"", b"\n"):
        target.write_bytes(content)
        assert is_replaceable(target, KINDS[kind])
    assert is_replaceable(tmp_path / "none", KINDS[kind])


def test_large_files_are_told_by_their_ends(samples, tmp_path):
    """A hole of a TiB, which nothing can read whole, before the end."""
    target = tmp_path / "file"
    for name, content in samples.items():
        target.write_bytes(content[:-200])
        os.truncate(target, 1 << 40)
        with target.open("ab") as file:
            file.write(content[-200:])
        assert is_replaceable(target, KINDS[name])
        assert not is_replaceable(target, KINDS["trace"])
    target.write_bytes(b"\n")
    os.truncate(target, 1 << 40)
    with target.open("ab") as file:
        file.write(b"\n")
    assert not is_replaceable(target, KINDS["run"])


def test_documents_of_any_layout_are_told_by_their_kind():
    for text in ('{"schema": 1}', ' {\n "schema":1,"run_id":"a"}', '{"schema":1,"kind": "run",'):
        assert KINDS["run"](text.encode())
        assert not KINDS["history"](text.encode())
    assert KINDS["history"](b'{"schema": 1, "kind": "history"}')
    for text in (
        '{"schema": "x"}',
        '{"schema": 12, "kind": "history"}',
        '{"schemas": 1}',
        '{"schema": 1, "kind": "runs"}',
    ):
        assert not KINDS["run"](text.encode())


def test_tables_of_all_commands_are_csv():
    for columns in (RUNS.columns, REDUCTIONS.columns):
        assert KINDS["csv"](b"\xef\xbb\xbf" + ",".join(columns).encode())
    assert KINDS["csv"](b'""\n')  # of a frame without columns


@pytest.mark.parametrize("way", ["plain", "symbolic", "hard"])
def test_what_is_read_and_what_another_flag_writes_is_not_written(way, tmp_path, samples):
    path, link = tmp_path / "a.csv", tmp_path / "b.csv"
    path.write_bytes(samples["csv"])
    if way == "plain":
        link = path
    else:
        (link.symlink_to if way == "symbolic" else link.hardlink_to)(path)
    output = OutputFile("output", str(link), "csv")
    with pytest.raises(FlagError, match=r"^--output=.*: is an input file of this command"):
        check_outputs([output], [None, "", str(path)])
    with pytest.raises(FlagError, match=r"^--output=.*: is also the path of --csv"):
        check_outputs([OutputFile("csv", str(path)), output])
    check_outputs([output, output])  # a flag may be given twice
    check_outputs(
        [output, OutputFile("plot", None), OutputFile("plot", "")], ["*.json", str(tmp_path)]
    )
