"""A metric is one file: what is registered there is in records, tables, commands and documents.

Tests cnnbench/records/metric.py.
"""

from __future__ import annotations

import csv
import json
import runpy
from pathlib import Path

import pytest
from registries import kept
from short_runs import command

from cnnbench.cli import documents
from cnnbench.cli.documents import schema_files
from cnnbench.records import metric
from cnnbench.records.metric import BOUNDS

DOCS = Path(__file__).parents[3] / "docs"
EXAMPLE = DOCS / "examples" / "metric_plugin.py"
NAME = "longest_step_ratio"


@pytest.fixture
def registered():
    """Runs the file of the example; afterwards there are the metrics of cnnbench alone."""
    tables = metric.ALL, metric.SUMMARY, metric.METRICS, metric.HISTORY, metric.BOUNDS
    with kept(*tables):
        runpy.run_path(str(EXAMPLE))
        yield


@pytest.mark.usefixtures("registered", "quick_start")
def test_a_run_computes_prints_and_writes_it(tmp_path, capsys, holds):
    files = {name: tmp_path / f"r.{name[-4:]}" for name in ("result_json", "result_csv")}
    assert command(**files, peak_flops=1e12) == 0
    record = json.loads(files["result_json"].read_text())
    ratio = record["summary"][NAME]
    assert ratio == pytest.approx(
        max(record["step_seconds"]) / record["summary"]["step_p50_seconds"], rel=1
    )
    assert f"the longest step takes {ratio:.2f} times the median" in capsys.readouterr().err
    (row,) = csv.DictReader(files["result_csv"].read_text().splitlines())
    assert float(row[NAME]) == ratio
    holds("run", record)  # whose schema does not know it
    assert NAME in schema_files()["run.schema.json"]
    schema = json.loads(schema_files()["run.schema.json"])["$defs"]["Summary"]
    assert NAME not in schema["required"]


@pytest.mark.usefixtures("registered")
def test_commands_judge_follow_report_and_document_it(call, save, tmp_path):
    seconds = [(0.1,) * 9 + (last,) for last in (0.11, 0.2)]
    base, new = (save(tmp_path / f"{last}", step_seconds=one) for last, one in enumerate(seconds))
    out = call("compare", base, new, f"--metrics=throughput,{NAME}", code=1).out
    assert f"{NAME}, median times the median" in out
    assert "+81.8 %" in out
    assert "- larger" in out
    call("compare", base, new, f"--metrics={NAME}", code=1)
    history = call("history", new, f"--metric={NAME}").out
    assert history.startswith(f"{NAME}, times the median, ")
    assert "lower is better" in history.splitlines()[0]
    assert f"| median {NAME}, times the median |" in call("report", new, "--format=markdown").out
    cells = call("report", new, "--format=csv", "--table=configurations").out.splitlines()
    assert float(next(csv.DictReader(cells))[NAME]) == pytest.approx(2.0)
    exported = call("compare", base, new, f"--metrics={NAME}", "--format=openmetrics", code=1).out
    assert f"# TYPE cnnbench_{NAME} gauge" in exported
    assert NAME in BOUNDS
    assert NAME in call("history", "--help").out
    assert NAME in call("compare", base, new, "--metrics=x", code=2).err
    assert f"| `{NAME}` | times the median | Longest / median" in documents.metric_tables()["runs"]
    assert f"```python\n{EXAMPLE.read_text()}```" in (DOCS / "metrics.md").read_text()
