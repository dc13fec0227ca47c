"""scripts/validate_explain: the pool it fills, the trials it draws, and what counts as right."""

from __future__ import annotations

import dataclasses
import functools
import os
from unittest import mock

import numpy as np
import pytest
import validate_explain
from short_runs import run
from step_profiles import CONV, Profiles, changed

from cnnbench.data.synthetic import SyntheticInput
from cnnbench.errors import UsageError
from cnnbench.records.run import Conditions
from cnnbench.run.step.train_step import TrainStep
from cnnbench.run.step.update import Updater

pytestmark = pytest.mark.slow

SLOWER = changed(lambda part: part.layer == "conv2" and part.kind == CONV, 1.7)


@pytest.fixture
def pool(tmp_path, lenet_runs):
    profiles = Profiles(lenet_runs())
    for side, rows in (("base", None), ("again", None), ("kernel", SLOWER)):
        folder = tmp_path / "lenet" / side
        folder.mkdir(parents=True)
        for number, one in enumerate(profiles.side(rows, processes=4)):
            (folder / f"{number:03d}.profile").write_text(one.to_json())
    return tmp_path


def test_plants_and_like_sides_are_counted(pool, capsys):
    words = ["--networks=lenet", f"--pool={pool}", "--sides=base,again,kernel", "--rounds=2"]
    assert validate_explain.main(words) == 0
    assert capsys.readouterr().out.splitlines() == [
        "lenet again: nothing named in 20 of 20, 4 processes",
        "lenet kernel: named first in 20 of 20, 4 processes",
        "lenet, each side against itself: a cause named in 0 of 9",
        "lenet: 0 processes were repeated, because others used CPUs",
    ]


def test_a_cause_of_like_sides_and_a_lacking_side_are_failures(pool, capsys):
    (pool / "lenet" / "again").rename(pool / "lenet" / "fast")
    (pool / "lenet" / "kernel").rename(pool / "lenet" / "again")
    assert validate_explain.main(["--networks=lenet", f"--pool={pool}", "--sides=base,again"]) == 1
    first, *answers, _, _ = capsys.readouterr().out.splitlines()
    assert first == "lenet again: nothing named in 0 of 20, 4 processes"
    assert all("conv2" in answer for answer in answers)
    assert validate_explain.main(["--networks=lenet", f"--pool={pool}", "--sides=kernel"]) == 1
    assert "in 0 of 0" in capsys.readouterr().out


def test_a_pool_lacks_one_process_of_each_side_in_turn(pool):
    options = validate_explain.Options(networks="lenet", pool=str(pool), processes=6)
    lacking = [*validate_explain.missing(options)]
    assert ("lenet", "batch_norm", 0) not in lacking  # LeNet has no batch norm
    assert [turn for _, _, turn in lacking] == sorted(turn for _, _, turn in lacking)
    assert sorted(turn for _, side, turn in lacking if side == "base") == [4, 5]
    assert len([turn for _, side, turn in lacking if side == "copies"]) == 6


def test_a_failed_process_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(validate_explain.SIDES, "base", validate_explain.Side(("--batch_size=x",)))
    words = ["--networks=lenet", f"--pool={tmp_path}", "--sides=base", "--minutes=1", "--load=99"]
    assert validate_explain.main(words) == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert "lenet, side base: ended with exit code 2" in line
    assert "--batch_size" in line


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["--networks=vgg"], "vgg: there are"),
        (["--sides=x"], "x: there are"),
        (["--rounds=0"], "--rounds"),
    ],
)
def test_wrong_use(words, key, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        validate_explain.main([*words, f"--pool={tmp_path}"])
    assert stopped.value.code == 2
    assert key in capsys.readouterr().err


@functools.cache
def losses(network: str, data: str, precision: str, plant: str) -> np.ndarray:
    model = {"model": f"planted_{network}", "plugin": str(validate_explain.PLUGIN)}
    with mock.patch.dict(os.environ, PLANT=plant):
        ran = run(**model, data_name=data, precision=precision, num_batches=2, num_warmup_batches=1)
    return np.asarray(ran.record.losses)


PLANTS = [side.plant for side in validate_explain.SIDES.values() if side.plant]
OTHERS = ("precision", "batch_norm")
SETS = [*OTHERS, ",".join(plant for plant in PLANTS if plant not in OTHERS)]


@pytest.mark.usefixtures("own_registry", "quick_start")
@pytest.mark.parametrize("plants", SETS, ids=["precision", "batch_norm", "all others"])
def test_plants_change_nothing_that_is_computed(plants, monkeypatch):
    for owner, name in ((Updater, "__call__"), (TrainStep, "__call__"), (SyntheticInput, "next")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # what a plant replaces for good
    network = ("resnet20", "cifar10") if plants == "batch_norm" else ("lenet", "imagenet")
    given = (*network, "bf16" if plants == "precision" else "fp32")
    plain = losses(*given, "")
    np.testing.assert_allclose(losses(*given, plants), plain, rtol=1e-2)


@pytest.mark.usefixtures("own_registry", "quick_start")
def test_plants_are_looked_up_where_a_network_is_built():
    with pytest.raises(UsageError, match="KeyError: 'no_such_plant'"):
        losses("lenet", "imagenet", "fp32", "no_such_plant")


def test_a_process_is_repeated_until_others_leave_the_cpus_alone(pool, monkeypatch, capsys):
    loads, others = iter([0.9, 0.5, 0.1, 0.1]), iter([0.4, 0.1])
    profiles = validate_explain.load(str(pool), "lenet", "base")

    def profile(path, network, side):
        conditions = Conditions(before={}, during={"other_cpus": next(others)})
        record = dataclasses.replace(profiles[0].record, conditions=conditions)
        found = dataclasses.replace(profiles[0], record=record)
        path.write_text(found.to_json())
        return found

    monkeypatch.setattr(validate_explain, "other_cpus", lambda: next(loads))
    monkeypatch.setattr(validate_explain, "profile", profile)
    words = ["--networks=lenet", f"--pool={pool}", "--sides=base", "--processes=5", "--minutes=1"]
    assert validate_explain.main(words) == 0
    assert [*loads, *others] == []
    assert len(validate_explain.files_of(str(pool), "lenet", "base")) == 5
    assert [one.name for one in pool.rglob("*.disturbed")] == ["004.0.disturbed"]
    assert "lenet: 1 processes were repeated, because others used CPUs" in capsys.readouterr().out
