"""Campaigns that go on: killed at every event, and asked again with another question.

Their processes only write records; see fake_python.py.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from cnnbench.campaigns.ab import side
from cnnbench.campaigns.processes.question import Question
from cnnbench.campaigns.processes.results_dir import Journal
from cnnbench.campaigns.strategies import weights
from cnnbench.campaigns.tune import race
from cnnbench.cli import main
from cnnbench.machine import software

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("quick_processes", "quick_answers"),
]

NET = """
from cnnbench.models import LearningRateSpec, Model, register_model

class Own(Model):
    name, dataset, image_size, batch_size = "own", "cifar10", 32, 2
    learning_rate = LearningRateSpec(0.01)

    def build(self, net, images):
        return net.logits(net.global_avg_pool(images))

register_model("own", "cifar10", Own)
"""
SUITE = """
entries:
  - {name: a, repeats: 2}
  - {name: b, repeats: 1, flags: {batch_size: 4}, max_batch_search: {limit: 8, multiple_of: 4}}
"""
SPACE = """
entries:
  - {name: threads, matrix: {num_inter_threads: [1, 2]}}
"""
FAST = {"by_flag": {"--num_inter_threads=2": 1.2}}
COMMANDS = {
    "ab": ["--b=--num_inter_threads=1", "--pairs=2", "--burn_in=0", "--pairing=turns"],
    "bisect": ["HEAD~1", "HEAD", "--pairs=6", "--burn_in=0", "--pairing=alternate"],
    "launch": ["--scaling=1", "--repeats=2"],
    "strategies": ["--modes=replicated", "--rounds=2"],
    "sweep": ["suite.yaml"],
    "tune": ["--space=space.yaml", "--minutes=5", "--pairing=alternate"],
}

MORE = {"launch": ["--variable_update=collective_all_reduce"], "strategies": ["--num_gpus=2"]}


class Campaigns:
    """A command over a plug-in in a repository of its own."""

    def __init__(self, folder, monkeypatch, git, fake_python):
        self.code, self.trace = folder / "code", folder / "trace"
        self.plugin = self.code / "net.py"
        self._monkeypatch, self._git, self._python = monkeypatch, git, fake_python
        for place, files in (
            (self.code, {"net.py": NET, "notes": ""}),
            (folder / "work", {"suite.yaml": SUITE, "space.yaml": SPACE, "fake.json": "{}"}),
        ):
            place.mkdir()
            git(place, "init", "--quiet")
            for name, text in files.items():
                (place / name).write_text(text)
            self.commit(place)
        monkeypatch.chdir(folder / "work")
        Path("fake.json").write_text('{"speed": 50}')
        self.commit(".")
        monkeypatch.setattr(side, "sys", SimpleNamespace(executable=fake_python))
        monkeypatch.setattr(race, "MOST_ROUNDS", 2)
        program = (fake_python, "-c", "cnnbench", "")
        for module in ("cli.commands.sweep", "campaigns.launch.tasks"):
            monkeypatch.setattr(f"cnnbench.{module}.program", lambda: program)
        alike = {"one": (0.0, ""), "tuned": (0.0, "")}
        monkeypatch.setattr(weights, "distances", lambda folders: alike)

    def commit(self, place):
        """Commits all of a repository."""
        self._git(place, "add", ".")
        self._git(place, "commit", "--quiet", "--allow-empty", "-m", "x")

    def traced(self):
        """How often each process was run, by names without times."""
        text = self.trace.read_text() if self.trace.exists() else ""
        return Counter(re.sub(r"\.20\d+T\d+Z", "", name) for name in text.split())

    def __call__(self, command, results, *, resume=False, **say):
        """Exit code of a command whose processes do this."""
        say = {"turns": True, "trace": str(self.trace), "salt": command, **FAST, **say}
        if command == "bisect":  # its commits say what their processes do
            self._monkeypatch.delenv("FAKE", raising=False)
        else:
            self._monkeypatch.setenv("FAKE", json.dumps(say))
        own = COMMANDS[command]
        own = [*own, f"--python={self._python}"] if command == "bisect" else own
        run = [f"--model_plugin={self.plugin}", "--model=own", "--device=cpu", "--batch_size=4"]
        run += MORE.get(command, [])
        given = ["--resume"] if resume else [] if command == "launch" else ["--seed=1"]
        if command == "ab" and resume:
            own, run = [], []
        behind = run if command == "strategies" else ["--", *run] if run else []
        return main([command, *own, f"--results={results}", *given, *behind])


@pytest.fixture
def campaigns(tmp_path, monkeypatch, git, fake_python):
    return Campaigns(tmp_path, monkeypatch, git, fake_python)


def records(folder):
    """The speeds in all records of a folder, by their paths without times."""
    found = {}
    for path in sorted(Path(folder).rglob("*.json")):
        document = json.loads(path.read_text())
        if "step_seconds" in document:
            name, stamp, _ = str(path.relative_to(folder)).partition(".20")
            found[name] = None if stamp else document["step_seconds"]  # drawn by the name
    return found


def events(folder):
    return [one for path in Path(folder).rglob("*.jsonl") for one in Journal(path).read()]


@pytest.fixture
def refused(campaigns, capsys):
    """refused(COMMAND): what differs, from the line that refuses to go on; nothing is run."""

    def refused(command):
        capsys.readouterr()
        before = len(events("r"))
        status = campaigns(command, "r", resume=True)
        out, err = capsys.readouterr()
        assert (status, len(events("r"))) == (2, before), err
        assert out == ""
        return err.splitlines()[-1].partition("in it differs in ")[2]

    return refused


@pytest.mark.parametrize("command", COMMANDS)
def test_another_question_is_refused(campaigns, refused, command, git, monkeypatch):
    assert campaigns(command, "r") in (0, 3)
    with monkeypatch.context() as patch:
        patch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
        patch.setattr(software, "_TENSORFLOW_PACKAGES", ("numpy",))
        campaigns.commit(campaigns.code)
        (campaigns.code / "notes").write_text("x")
        differ = refused(command)
        for name in ("commit of ", "uncommitted changes of ", "tensorflow_package ("):
            assert name in differ
        assert "TF_ENABLE_ONEDNN_OPTS (1, now 0)" in differ
    (campaigns.code / "notes").write_text("")
    git(campaigns.code, "reset", "--quiet", "--soft", "HEAD~1")
    assert campaigns(command, "r", resume=True) in (0, 3)


def test_each_kind_of_edit_is_another_question(campaigns, refused, tmp_path):
    code = campaigns.code
    campaigns.plugin = campaigns.plugin.rename(tmp_path / "net.py")  # in no repository
    os.chdir(code)
    Path("suite.yaml").write_text(SUITE)
    assert campaigns("sweep", "r") == 0
    for file, text in ((code / "notes", "x"), (code / "new.py", ""), (campaigns.plugin, f"{NET}#")):
        before = file.read_text() if file.exists() else None
        file.write_text(text)
        assert "uncommitted changes" in refused("sweep")
        file.unlink()
        if before is not None:
            file.write_text(before)
    assert campaigns("sweep", "r", resume=True) == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_an_edit_meanwhile_ends_a_campaign_and_keeps_what_was_measured(campaigns, command, capsys):
    notes = campaigns.code / "notes"
    if command == "bisect":
        Path("fake.json").write_text(json.dumps({"trace": str(notes)}))
        campaigns.commit(".")
    assert campaigns(command, "r", trace=str(notes)) == 4
    (line,) = (one for one in capsys.readouterr().err.splitlines() if " error: " in one)
    assert line.startswith("cnnbench: error: the measured code was changed (uncommitted changes")
    assert 1 <= len([one for one in events("r") if one["event"] == "process"]) <= 2


@pytest.mark.parametrize("command", COMMANDS)
def test_killed_at_any_event_it_goes_on_to_the_same_result(campaigns, command, monkeypatch):
    add, cuts = Journal.add, []
    monkeypatch.setattr(Question, "check", lambda self: None)  # edits have tests of their own
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)

    def cut(journal, event, **facts):
        """Copies what a kill at this moment would leave."""
        shutil.copytree("whole", f"cut-{len(cuts)}")
        cuts.append(campaigns.traced())
        add(journal, event, **facts)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "add", cut)
        assert campaigns(command, "whole") in (0, 3)
    expected, once = records("whole"), campaigns.traced()
    assert len(expected) > 2
    for moment, before in enumerate(cuts):
        campaigns.trace.unlink(missing_ok=True)
        assert campaigns(command, f"cut-{moment}", resume=moment > 0) in (0, 3), moment
        assert records(f"cut-{moment}") == expected, moment
        done = before + campaigns.traced()
        halves = {"tune": 1}.get(command, 0)  # of a pair whose processes alternate
        assert sum((done - once).values()) <= halves, moment
        assert not once - done, moment
