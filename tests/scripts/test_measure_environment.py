"""The ratios of speeds that the script prints, and its error messages."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import measure_environment
import pytest

from cnnbench.campaigns.tune import environment
from cnnbench.errors import BenchmarkError
from cnnbench.records.load import load_run

FROZEN = Path(__file__).parents[1] / "frozen/runs/lenet-1.json"


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Processes in which GLIBC_TUNABLES halves the step time; returns the measured networks."""
    record, models = load_run(str(FROZEN)), []

    def measure_round(model, order):
        models.append(model)
        scales = [0.5 if "GLIBC_TUNABLES" in setting else 1.0 for setting in order]
        return [
            dataclasses.replace(
                record, step_seconds=tuple(seconds * scale for seconds in record.step_seconds)
            )
            for scale in scales
        ]

    monkeypatch.setattr(measure_environment, "measure_round", measure_round)
    monkeypatch.setattr(environment, "why_unusable", lambda name, value: "")
    return models


def test_each_setting_is_compared_with_a_process_of_its_round(rounds, capsys) -> None:
    assert measure_environment.main(["--models=lenet,vgg16", "--rounds=3"]) == 0
    assert rounds == ["lenet"] * 3 + ["vgg16"] * 3
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[1:]]
    assert {row[0] for row in rows} == {"| lenet", "| vgg16"}
    speeds = {row[1]: row[2] for row in rows if row[0] == "| lenet"}
    assert speeds.pop("`none`") == "1"
    assert speeds.pop("`GLIBC_TUNABLES=<kept_memory>`") == "2.000 (2.000 to 2.000)"
    assert speeds.pop("`GLIBC_TUNABLES=<huge_pages>`") == "2.000 (2.000 to 2.000)"
    assert {*speeds.values()} == {"1.000 (1.000 to 1.000)"}
    assert len(speeds) >= 3


def test_a_setting_without_effect_on_this_machine_is_not_measured(monkeypatch) -> None:
    monkeypatch.setattr(environment, "why_unusable", lambda name, value: name == "LD_PRELOAD")
    assert not any("LD_PRELOAD" in setting for setting in measure_environment.settings())
    assert measure_environment.settings()[0] == {}


def test_an_unknown_network_is_refused(capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        measure_environment.main(["--models=lenet,nothing"])
    assert stopped.value.code == 2
    assert "--models=nothing" in capsys.readouterr().err


def test_a_failed_process_ends_the_script(monkeypatch, capsys) -> None:
    def fail(model, order):
        raise BenchmarkError("lenet {}: killed")

    monkeypatch.setattr(measure_environment, "measure_round", fail)
    assert measure_environment.main(["--models=lenet"]) == 4
    assert "killed" in capsys.readouterr().err
