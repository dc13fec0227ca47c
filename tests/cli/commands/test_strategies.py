"""``cnnbench strategies`` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import local_sgd
import pytest

from cnnbench.cli import main
from cnnbench.judge.compare import load_records
from cnnbench.records.outputs import KINDS

pytestmark = pytest.mark.timeout(300)

TINY = ("--model=trivial", "--device=cpu", "--num_gpus=2", "--batch_size=2", "--peak_flops=1e11")
STEPS = ("--num_batches=3", "--num_warmup_batches=1", "--rounds=1")


def test_modes_are_measured_and_have_equal_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], loaded_processes: None
) -> None:
    results, plot = tmp_path / "results", tmp_path / "plot.svg"
    modes = f"--modes=parameter_server,replicated,{local_sgd.MODE}"
    plugin = f"--variable_mgr_plugin={local_sgd.PLUGIN}"
    out = ("--format=json", f"--results={results}", f"--plot={plot}")
    assert main(["strategies", *TINY, *STEPS, modes, plugin, *out]) == 0
    text = capsys.readouterr().out
    assert KINDS["strategies"](text.encode())
    assert KINDS[".svg"](plot.read_bytes())
    document = json.loads(text)
    rows = {row["mode"]: row for row in document["rows"]}
    names = ["one_tower", "parameter_server", "replicated", local_sgd.MODE]
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
    assert modes_run == [local_sgd.MODE, "parameter_server", "parameter_server", "replicated"]
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
