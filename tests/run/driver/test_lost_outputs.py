"""Outputs that are lost during a run: the others are written, and what was measured is printed.

Tests cnnbench/run/driver/scenarios.py.
"""

import json
import shutil

import pytest
from short_runs import TINY, command, run

from cnnbench.errors import FlagError
from cnnbench.records.files import write_text
from cnnbench.records.load import load_run
from cnnbench.run.driver import scenarios
from cnnbench.run.driver.checkpoints import Checkpoints

pytestmark = pytest.mark.usefixtures("quick_start")


@pytest.fixture
def during(monkeypatch, capsys):
    """during(ACTION, **flags): code, stdout, stderr of a run in which ACTION follows the checks."""

    def run(action, **flags):
        train = scenarios.train

        def acted(*arguments):
            action()
            return train(*arguments)

        monkeypatch.setattr(scenarios, "train", acted)
        capsys.readouterr()
        code = command(**flags)
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def lost(tmp_path):
    folder = tmp_path / "lost"
    folder.mkdir()
    return folder


def replace_by_a_file(folder):
    shutil.rmtree(folder)
    folder.write_text("mine")


def test_a_folder_that_vanishes_takes_nothing_else_along(during, lost, tmp_path):
    path, table, profile = lost / "r.json", tmp_path / "r.csv", tmp_path / "p.json"
    files = {"result_json": path, "result_csv": table, "profile_json": profile}
    code, out, err = during(lambda: replace_by_a_file(lost), **files)
    assert code == 4
    assert f"cnnbench: error: --result_json={path}: there is no folder {lost}\n" in err
    assert out.splitlines()[-2].startswith("total images/sec: ")
    assert len(table.read_text().splitlines()) == 2
    assert json.loads(profile.read_text())["kind"] == "step_profile"


def test_files_that_fail_during_a_run_do_not_end_it(during, lost, tmp_path):
    path = tmp_path / "r.json"
    single = {"graph_file": "g", "trace_file": "t"}
    more = {"partitioned_graph_file_prefix": "p", "benchmark_log_dir": "b", "export_dir": "e/x"}
    flags = {name: lost / file for name, file in {**single, **more}.items()}
    flags |= {"eval_dir": lost / "eval", "summary_verbosity": 1, "num_eval_batches": 1}
    flags["eval_during_training_every_n_steps"] = 2
    code, _, err = during(lambda: replace_by_a_file(lost), result_json=path, **flags)
    assert code == 4
    last = err.splitlines()[-1]
    assert last.startswith("cnnbench: error: ")
    for name in (*single, *more, "eval_dir"):
        assert f"--{name}={lost}" in last
    record = load_run(str(path))
    assert (record.status, len(record.step_seconds)) == ("ok", TINY["num_batches"])
    assert lost.read_text() == "mine"


def test_a_last_checkpoint_that_cannot_be_written_ends_nothing(during, lost, tmp_path, monkeypatch):
    path, train, save = tmp_path / "r.json", lost / "train", Checkpoints.save

    def saved(*arguments):
        replace_by_a_file(lost)
        return save(*arguments)

    monkeypatch.setattr(Checkpoints, "save", saved)
    flags = {"train_dir": train, "result_json": path, "export_dir": tmp_path / "export"}
    code, out, err = during(lambda: None, **flags)
    assert code == 4
    assert err.splitlines()[-1].startswith(f"cnnbench: error: --train_dir={train}: no checkpoint ")
    assert out.splitlines()[-2].startswith("total images/sec: ")
    assert load_run(str(path)).status == "ok"
    assert (tmp_path / "export" / "saved_model.pb").is_file()


def test_the_error_that_ends_a_run_comes_last(during, lost):
    flags = {"graph_file": lost / "g", "train_dir": lost / "train", "save_model_steps": 1}
    code, _, err = during(lambda: replace_by_a_file(lost), **flags)
    *_, before, last = err.splitlines()
    assert code == 4
    assert before.startswith(f"cnnbench: warning: --graph_file={lost}/g: ")
    assert last.startswith("cnnbench: error: ")
    assert f"{lost}/train" in last


def test_a_run_leaves_no_failure_to_the_next_one(lost, monkeypatch):
    def refused(*_):
        replace_by_a_file(lost)
        write_text("graph_file", str(lost / "g"), "")
        raise FlagError("num_gpus", 9, "there are fewer")

    with monkeypatch.context() as patch:
        patch.setattr(scenarios, "train", refused)
        with pytest.raises(FlagError, match="there are fewer"):
            run(graph_file=str(lost / "g"))
    assert run().record.status == "ok"


def test_endless_evaluations_warn_of_an_export_that_fails(lost, tmp_path, monkeypatch, capsys):
    train, restore = tmp_path / "train", Checkpoints.restore
    assert command(train_dir=train) == 0

    def restored(*arguments):
        replace_by_a_file(lost)
        return restore(*arguments)

    def sleep(seconds):
        assert f"warning: --export_dir={lost}/m: " in capsys.readouterr().err
        raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoints, "restore", restored)
    monkeypatch.setattr(scenarios.time, "sleep", sleep)
    flags = {"train_dir": train, "export_dir": lost / "m", "eval_interval_secs": 1}
    assert command("--eval", **flags, num_eval_batches=1) == 130
