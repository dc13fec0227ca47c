"""``cnnbench strategies`` from the command line."""

from __future__ import annotations

import json
import os
import re
from types import SimpleNamespace

import pytest
from oracle import LOCAL_SGD, LOCAL_SGD_PLUGIN

from cnnbench.campaigns.ab import side
from cnnbench.campaigns.strategies import weights
from cnnbench.cli import main
from cnnbench.judge.compare import load_records
from cnnbench.records.campaigns import StrategiesDocument

pytestmark = pytest.mark.timeout(300)

TINY = ("--model=trivial", "--data_name=cifar10", "--device=cpu", "--num_gpus=2")
TINY += ("--batch_size=2", "--peak_flops=1e11")
STEPS = ("--num_batches=3", "--num_warmup_batches=1", "--rounds=1")


def test_modes_are_measured_and_have_equal_weights(call, tmp_path, loaded_processes):
    results, plot = tmp_path / "results", tmp_path / "plot.svg"
    modes = "--modes=parameter_server,replicated"
    out = ("--format=json", f"--results={results}", f"--plot={plot}")
    text = call("strategies", *TINY, *STEPS, modes, *out).out
    document = json.loads(text)
    rows = {row["mode"]: row for row in document["rows"]}
    names = ["one_tower", "parameter_server", "replicated"]
    assert list(rows) == names
    weights = ["not compared", "reference", "equal"]
    assert [row["weights"] for row in rows.values()] == weights
    assert rows["replicated"]["weight_distance"] <= 1e-6
    assert rows["replicated"]["variable_copies"] == 2 * rows["parameter_server"]["variables"]
    assert rows["parameter_server"]["reduction_operations"] > 0
    assert all(row["images_per_sec"] > 0 for row in rows.values())
    assert "</svg>" in plot.read_text()
    assert json.loads((results / "strategies.json").read_text()) == document
    records = load_records([results]).records
    modes_run = sorted(one.config["variable_update"] for one in records)
    assert modes_run == ["parameter_server", "parameter_server", "replicated"]
    assert not (results / "checkpoints").exists()
    # Ordinary records, which other commands read.
    pair = [str(results / name) for name in ("parameter_server", "replicated")]
    call("compare", *pair, "--allow_different=variable_update", code=3)
    page = call("report", str(results), "--format=markdown").out
    assert "## Modes side by side" in page
    assert "cnnbench strategies --model=trivial" in page
    call("history", str(results))


class Modes:
    """The command over two modes with processes that only write records; see fake_python.py."""

    def __init__(self, folder, monkeypatch):
        self.results = folder / "results"
        self._trace = folder / "trace"
        self._monkeypatch = monkeypatch

    def __call__(self, *flags, **say):
        fake = {"parent": os.getpid(), "trace": str(self._trace), **say}
        self._monkeypatch.setenv("FAKE", json.dumps(fake))
        modes = "--modes=parameter_server,replicated"
        return main(["strategies", *TINY, modes, "--seed=3", *flags, f"--results={self.results}"])

    @property
    def order(self):
        """Names of the processes."""
        return self._trace.read_text().split()

    def runs(self, mode):
        """The records of a mode."""
        return list(load_records([self.results / mode]).records)

    def rows(self):
        """The rows of the document by mode."""
        text = (self.results / "strategies.json").read_text()
        return {row.mode: row for row in StrategiesDocument.from_json(text).rows}


@pytest.fixture
def modes(tmp_path, monkeypatch, fake_python, quick_processes):
    """See `Modes`; weights of all modes are the same."""
    monkeypatch.setattr(side, "sys", SimpleNamespace(executable=fake_python))
    return Modes(tmp_path, monkeypatch)


@pytest.fixture
def compare_weights(monkeypatch):
    """compare_weights(HOW): of checkpoints, which the processes do not leave."""
    return lambda how: monkeypatch.setattr(weights, "weight_distances", how)


@pytest.fixture
def same_weights(compare_weights):
    """Checkpoints are taken to be equal."""
    compare_weights(lambda cases: {})


def test_a_mode_of_a_plug_in_is_measured(modes, same_weights):
    of_plugin = (f"--plugin={LOCAL_SGD_PLUGIN}", f"--modes=replicated,{LOCAL_SGD}")
    assert modes(*of_plugin, "--rounds=1", "--weights_steps=0") == 0
    assert [*modes.rows()] == ["one_tower", "replicated", LOCAL_SGD]
    assert len(modes.runs(LOCAL_SGD)) == 1


@pytest.mark.parametrize(("failing", "good"), [("replicated-r2", 1), ("replicated-weights", 0)])
def test_a_case_that_fails_is_recorded_and_not_run_again(
    modes, same_weights, failing, good, capsys
):
    assert modes("--weights_steps=3", fail=[failing], message="no good") == 4
    # Those that are left out are not expected any more.
    done, total = re.findall(r"\[(\d+)/(\d+)\] ", capsys.readouterr().err)[-1]
    assert done == total == str(len(modes.order))
    row = modes.rows()["replicated"]
    assert (row.problem, row.processes) == ("no good", good)
    assert modes.rows()["parameter_server"].processes == 3
    assert sum(name.startswith("replicated-r") for name in modes.order) == 2 * good
    *_, failed = sorted(modes.runs("replicated"), key=lambda run: run.status != "ok")
    assert failed.error is not None
    assert failed.error.message == "no good"


def no_more(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("say", "compared", "steps", "status", "told"),
    [
        ({"interrupt": ["replicated-r2"]}, None, 0, 130, "interrupted; "),
        ({}, no_more, 3, 130, "interrupted; 6 of 6 processes measured"),
        ({}, None, 3, 4, "parameter_server wrote no checkpoint; 6 of 6 processes measured"),
    ],
)
def test_an_early_end_keeps_the_table_of_what_was_measured(
    call, modes, say, compared, steps, status, told, capsys, compare_weights
):
    if compared is not None:
        compare_weights(compared)
    assert modes("--rounds=2", f"--weights_steps={steps}", **say) == status
    out, err = capsys.readouterr()
    assert "parameter_server  " in out
    assert f"Incomplete: {told}" in out
    assert steps == 0 or "cnnbench: comparing the weights of 2 modes\n" in err
    assert err.splitlines()[-1].startswith(f"cnnbench: error: {told.partition(';')[0]}")
    assert f"Incomplete: {told}" in call("report", str(modes.results), "--format=markdown").out
