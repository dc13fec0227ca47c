"""``cnnbench strategies`` from the command line."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

import pytest
from oracle import LOCAL_SGD, LOCAL_SGD_PLUGIN

from cnnbench.campaigns.strategies import session, weights
from cnnbench.cli import main
from cnnbench.judge.compare import load_records
from cnnbench.records.outputs import KINDS
from cnnbench.records.strategies import StrategiesDocument

pytestmark = pytest.mark.timeout(300)

TINY = ("--model=trivial", "--device=cpu", "--num_gpus=2", "--batch_size=2", "--peak_flops=1e11")
STEPS = ("--num_batches=3", "--num_warmup_batches=1", "--rounds=1")


def test_modes_are_measured_and_have_equal_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], loaded_processes: None
) -> None:
    results, plot = tmp_path / "results", tmp_path / "plot.svg"
    modes = f"--modes=parameter_server,replicated,{LOCAL_SGD}"
    plugin = f"--variable_mgr_plugin={LOCAL_SGD_PLUGIN}"
    out = ("--format=json", f"--results={results}", f"--plot={plot}")
    assert main(["strategies", *TINY, *STEPS, modes, plugin, *out]) == 0
    text = capsys.readouterr().out
    assert KINDS["strategies"](text.encode())
    assert KINDS[".svg"](plot.read_bytes())
    document = json.loads(text)
    rows = {row["mode"]: row for row in document["rows"]}
    names = ["one_tower", "parameter_server", "replicated", LOCAL_SGD]
    assert list(rows) == names
    weights = ["not compared", "reference", "equal", "not compared"]
    assert [row["weights"] for row in rows.values()] == weights
    assert rows["replicated"]["weight_distance"] <= 1e-6
    assert rows["replicated"]["variable_copies"] == 2 * rows["parameter_server"]["variables"]
    assert rows["parameter_server"]["reduction_operations"] > 0
    assert all(row["images_per_sec"] > 0 for row in rows.values())
    assert "</svg>" in plot.read_text()
    assert json.loads((results / "strategies.json").read_text()) == document
    records = load_records([results]).records
    modes_run = sorted(one.config["variable_update"] for one in records)
    assert modes_run == [LOCAL_SGD, "parameter_server", "parameter_server", "replicated"]
    assert not (results / "checkpoints").exists()
    # Ordinary records, which other commands read.
    pair = [str(results / name) for name in ("parameter_server", "replicated")]
    assert main(["compare", *pair, "--allow_different=variable_update"]) == 3
    capsys.readouterr()
    assert main(["report", str(results), "--format=markdown"]) == 0
    page = capsys.readouterr().out
    assert "## Modes side by side" in page
    assert "cnnbench strategies --model=trivial" in page
    assert main(["history", str(results)]) == 0


def no_more(*_: object) -> dict[str, object]:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("fake", "steps", "status", "told"),
    [
        ({"interrupt": ["replicated-r2"]}, 0, 130, "interrupted; "),
        ({"compare": no_more}, 3, 130, "interrupted; 6 of 6 processes measured"),
        ({}, 3, 4, "parameter_server has left no checkpoint; 6 of 6 processes measured"),
    ],
)
def test_an_early_end_keeps_the_table_of_what_was_measured(
    fake: dict[str, Any],
    steps: int,
    status: int,
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    fake_python: str,
    quick_processes: None,
) -> None:
    started = functools.partial(session.StrategiesSession, python=fake_python)
    monkeypatch.setattr("cnnbench.cli.commands.strategies.StrategiesSession", started)
    if "compare" in fake:
        monkeypatch.setattr(weights, "distances", fake.pop("compare"))
    monkeypatch.setenv("FAKE", json.dumps({"parent": os.getpid(), **fake}))
    folder = tmp_path / "results"
    flags = ("--modes=parameter_server,replicated", "--rounds=2", f"--weights_steps={steps}")
    assert main(["strategies", *TINY, *flags, f"--results={folder}"]) == status
    out, err = capsys.readouterr()
    assert "parameter_server  " in out
    assert f"incomplete: {told}" in out
    assert steps == 0 or "cnnbench: comparing the weights of 2 modes\n" in err
    assert err.splitlines()[-1].startswith(f"cnnbench: error: {told.partition(';')[0]}")
    document = StrategiesDocument.from_json((folder / "strategies.json").read_text())
    assert (document.incomplete or "").startswith(told)
    assert main(["report", str(folder), "--format=markdown"]) == 0
    assert f"Incomplete: {told}" in capsys.readouterr().out
