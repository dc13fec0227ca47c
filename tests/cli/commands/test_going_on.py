"""Campaigns that go on: killed at every event, and asked again with another question.

Their processes only write records; see fake_python.py.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import random
import re
import shutil
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from cnnbench.campaigns.ab import side
from cnnbench.campaigns.ab import worktree as checkout
from cnnbench.campaigns.bisect import search
from cnnbench.campaigns.processes import campaign, identity
from cnnbench.campaigns.processes.identity import CampaignIdentity
from cnnbench.campaigns.processes.journal import JOURNAL, Journal
from cnnbench.campaigns.tune import race
from cnnbench.cli import main
from cnnbench.machine import facts as software

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("quick_processes", "quick_answers"),
]

COLLECT = software.collect  # which `quick_processes` replaces

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
  - {name: b, repeats: 1, flags: {batch_size: 4, find_batch_size: true}}
"""
THREADS = {"threads": ({}, {"num_inter_threads": "1"}, {"num_inter_threads": "2"})}
FAST = {"by_flag": {"--num_inter_threads=2": 1.2}}
COMMANDS = {
    "ab": ["--b=--num_inter_threads=1", "--pairs=2", "--burn_in=0", "--pairing=turns"],
    "ab alternating": [
        "--b=--num_inter_threads=1",
        "--pairs=2",
        "--burn_in=0",
        "--pairing=alternate",
    ],
    "bisect": ["HEAD~2", "HEAD", "--pairs=6", "--burn_in=0", "--pairing=alternate"],
    "sweep": ["suite.yaml"],
    "tune": ["--minutes=5", "--pairing=alternate"],
}

QUESTIONS = ["ab", "sweep", "tune"]
"""Commands whose questions differ: that of ab is the same, whatever the pairing."""


def commit(git, place):
    git(place, "add", ".")
    git(place, "commit", "--quiet", "--allow-empty", "-m", "x")


class Campaigns:
    """A command over a plug-in in a repository of its own."""

    def __init__(self, folder, repositories, monkeypatch, git, fake_python):
        shutil.copytree(repositories, folder, dirs_exist_ok=True)
        self.code = folder / "code"
        self.plugin = self.code / "net.py"
        self._monkeypatch, self._git, self._python = monkeypatch, git, fake_python
        monkeypatch.chdir(folder / "work")
        monkeypatch.setattr(race, "MOST_ROUNDS", 2)
        program = (fake_python, "-c", "cnnbench", "")
        monkeypatch.setattr("cnnbench.cli.commands.sweep.own_command_prefix", lambda: program)
        groups = "cnnbench.cli.commands.tune.search_groups"
        monkeypatch.setattr(groups, lambda *_, **situation: THREADS)

    def commit(self, place):
        """Commits all of a repository."""
        commit(self._git, place)

    def __call__(self, command, results, *, resume=False, **say):
        """Exit code of a command whose processes do this."""
        own, command = COMMANDS[command], command.split()[0]
        say = {"turns": True, "salt": command, **FAST, **say}
        if command == "bisect":  # its commits say what their processes do
            self._monkeypatch.delenv("FAKE", raising=False)
        else:
            self._monkeypatch.setenv("FAKE", json.dumps(say))
        own = [*own, f"--python={self._python}"] if command == "bisect" else own
        # The worktrees of bisect are made by a Python, too.
        python = sys.executable if command == "bisect" else self._python
        self._monkeypatch.setattr(side, "sys", SimpleNamespace(executable=python))
        run = [f"--plugin={self.plugin}", "--model=own", "--device=cpu", "--batch_size=4"]
        given = ["--resume"] if resume else ["--seed=1"]
        if command == "ab" and resume:
            own, run = [], []
        behind = ["--", *run] if run else []
        return main([command, *own, f"--results={results}", *given, *behind])


@pytest.fixture(scope="module")
def repositories(tmp_path_factory, git):
    """A folder with the plug-in in one repository and what commands read in another."""
    folder = tmp_path_factory.mktemp("repositories")
    files = {"suite.yaml": SUITE, "fake.json": "{}", "notes": ""}
    for name, texts in (("code", {"net.py": NET, "notes": ""}), ("work", files)):
        place = folder / name
        place.mkdir()
        git(place, "init", "--quiet")
        for file, text in texts.items():
            (place / file).write_text(text)
        commit(git, place)
    for say in ({"salt": 1}, {"speed": 50}):
        (folder / "work" / "fake.json").write_text(json.dumps(say))
        commit(git, folder / "work")
    return folder


@pytest.fixture
def campaigns(tmp_path, repositories, monkeypatch, git, fake_python):
    return Campaigns(tmp_path, repositories, monkeypatch, git, fake_python)


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
    return [one for path in Path(folder).rglob(JOURNAL) for one in Journal(path).read()]


@pytest.fixture
def refused(campaigns, capsys):
    """refused(COMMAND): what differs, from the line that refuses to go on; nothing is run."""

    def refused(command, folder="r"):
        capsys.readouterr()
        before = len(events(folder))
        status = campaigns(command, folder, resume=True)
        out, err = capsys.readouterr()
        assert (status, len(events(folder))) == (2, before), err
        assert out == ""
        return err.splitlines()[-1].partition("in it differs in ")[2]

    return refused


@pytest.mark.parametrize("command", QUESTIONS)
def test_another_question_is_refused(campaigns, refused, command, git, monkeypatch):
    assert campaigns(command, "r") in (0, 3)
    with monkeypatch.context() as patch:
        patch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
        patch.setattr(software, "_TENSORFLOW_PACKAGES", ("numpy",))
        patch.setattr(software, "collect", COLLECT)
        patch.setattr(identity, "source_digest", lambda: "edited")
        campaigns.commit(campaigns.code)
        (campaigns.code / "notes").write_text("x")
        differ = refused(command)
        parts = ("commit of ", "uncommitted changes of ", "tensorflow_package (", "sources of cnn")
        for name in parts:
            assert name in differ
        assert "TF_ENABLE_ONEDNN_OPTS (1, now 0)" in differ
    (campaigns.code / "notes").write_text("")
    git(campaigns.code, "reset", "--quiet", "--soft", "HEAD~1")
    assert campaigns(command, "r", resume=True) in (0, 3)


@pytest.mark.parametrize("command", ["bisect", "sweep", "tune"])
def test_each_kind_of_edit_is_another_question(campaigns, refused, command, tmp_path):
    """Two kinds with each command, which are all kinds."""
    plugin = campaigns.plugin = campaigns.plugin.rename(tmp_path / "net.py")  # in no repository
    helper = tmp_path / f"helper_{abs(hash(tmp_path))}.py"  # modules stay loaded after a test
    folder = "import os, sys; sys.path.insert(0, os.path.dirname(__file__))"
    used = f"{folder}\nimport {helper.stem}\nFILES = ['sizes.txt']\n{NET}"
    sizes = tmp_path / "sizes.txt"
    for file, text in ((plugin, used), (helper, "SIZE = 1"), (sizes, "1")):
        file.write_text(text)
    assert campaigns(command, "../r") in (0, 3)
    own = {plugin: f"{used}#", helper: "SIZE = 2", sizes: "2"}
    kinds = [*{Path("notes"): "x", Path("new.py"): "", **own}.items()]
    place = [*COMMANDS].index(command)
    for file, text in (kinds[(place + more) % len(kinds)] for more in (0, 3)):
        before = file.read_text() if file.exists() else None
        file.write_text(text)
        if command == "bisect" and file not in own:  # nothing of the working tree is measured
            assert campaigns(command, "../r", resume=True) in (0, 3)
        else:
            assert "uncommitted changes" in refused(command, "../r")
        file.unlink()
        if before is not None:
            file.write_text(before)
    assert campaigns(command, "../r", resume=True) in (0, 3)


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


class Recorded:
    """Runs each process once; later, it ends at once as it did then. `count` has their names."""

    def __init__(self):
        self.count = Counter()
        self._execute, self._ends = campaign.execute, {}

    def __call__(self, command, timeout):
        name = re.sub(r"\.20\d+T\d+Z", "", str(Path(*command.log.parts[1:])))
        self.count[name] += 1
        if name not in self._ends:
            self._ends[name] = self._execute(command, timeout), command.record.read_bytes()
        ended, record = self._ends[name]
        command.record.write_bytes(record)
        return ended


@pytest.fixture
def one_worktree():
    """A worktree of each commit, for all bisections of a test."""
    with contextlib.ExitStack() as stack:
        made = functools.cache(lambda *given: stack.enter_context(checkout.worktree(*given)))
        yield lambda *given: contextlib.nullcontext(made(*given))


@pytest.fixture
def recorded(one_worktree, monkeypatch):
    """Each process of campaigns runs once in a test, and then ends as it did; see `Recorded`."""
    run = Recorded()
    monkeypatch.setattr(campaign, "execute", run)
    monkeypatch.setattr(
        campaign,
        "execute_interleaved",
        lambda both, *_: [campaign.execute(one, 60) for one in both],
    )
    monkeypatch.setattr(search, "worktree", one_worktree)
    monkeypatch.setattr(
        CampaignIdentity, "raise_if_code_changed", lambda self: None
    )  # edits have tests of their own
    return run


MOST_CUTS = 2
"""Kills of a campaign, in the midst of its events."""


@pytest.mark.parametrize("command", COMMANDS)
def test_killed_at_any_event_it_goes_on_to_the_same_result(
    campaigns, recorded, command, monkeypatch
):
    run, cuts, add = recorded, [], Journal.add

    def cut(journal, event, **facts):
        """Copies what a kill at this moment would leave."""
        shutil.copytree("whole", f"cut-{len(cuts)}")
        cuts.append(run.count.copy())
        add(journal, event, **facts)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "add", cut)
        assert campaigns(command, "whole") in (0, 3)
    expected, once = records("whole"), run.count.copy()
    assert len(expected) > 2
    assert {*once.values()} == {1}
    for part in range(1, 1 + MOST_CUTS):
        moment = len(cuts) * part // (1 + MOST_CUTS)
        run.count = cuts[moment]
        assert campaigns(command, f"cut-{moment}", resume=True) in (0, 3), moment
        assert records(f"cut-{moment}") == expected, moment
        assert run.count == once, moment


def moved(folder):
    folder.rename("away")
    return lambda: Path("away").rename(folder)


def replaced(folder):
    back = moved(folder)
    Path("other").mkdir(exist_ok=True)
    folder.symlink_to("other")

    def put_back():
        assert not [*Path("other").iterdir()]
        folder.unlink()
        back()

    return put_back


@pytest.mark.parametrize(
    ("command", "how", "target", "name"),
    [("ab", replaced, Journal, "add"), ("sweep", moved, campaign, "execute")],
)
def test_a_folder_that_vanishes_gets_no_more_and_is_resumed(
    campaigns, recorded, capsys, monkeypatch, command, how, target, name
):
    """After the first process, or during it."""
    assert campaigns(command, "whole") in (0, 3)
    folder, put_back, usual = Path("vanishing"), [], getattr(target, name)

    def once(*given, **facts):
        found = usual(*given, **facts)
        if not put_back and (not facts or given[1] == "process"):
            put_back.append(how(folder))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(target, name, once)
        capsys.readouterr()
        assert campaigns(command, folder) == 4
    err = capsys.readouterr().err
    (line,) = (line for line in err.splitlines() if " error: " in line)
    assert str(folder) in line
    assert not folder.exists() or folder.is_symlink()
    put_back[0]()
    assert campaigns(command, folder, resume=True) in (0, 3)
    assert records(folder) == records("whole")


_UNREADABLE = (b"", b"{", b"\xff", b"[1]", b'{"event": 1}', b'{"event": "process", "names": 1}')


def edit(folder: Path, generator: random.Random) -> str:
    """Changes a file of a campaign in a way that the generator draws; returns what was done."""
    journals = [path for path in sorted(folder.rglob(JOURNAL)) if path.stat().st_size]
    records = [path for journal in journals for path in _named_records(journal)]
    kinds = [_tear, _make_unreadable, *([_remove, _exchange] if len(records) > 1 else [])]
    kind = generator.choice(kinds)
    path = generator.choice(records if kind in (_remove, _exchange) else journals)
    kind(path, generator, [one for one in records if one != path])
    return f"{kind.__name__} {path}"


def _named_records(journal: Path) -> list[Path]:
    """The records that the ends of processes name, if they are in place."""
    events = map(json.loads, journal.read_text().splitlines())
    paths = {journal.parent / event["record"] for event in events if "record" in event}
    return sorted(path for path in paths if path.exists())


def _tear(path: Path, generator: random.Random, _: list[Path]) -> None:
    data = path.read_bytes()
    last = data.rstrip(b"\n").rfind(b"\n") + 1
    path.write_bytes(data[: generator.randrange(last, len(data))])


def _make_unreadable(path: Path, generator: random.Random, _: list[Path]) -> None:
    lines = path.read_bytes().splitlines()
    lines[generator.randrange(len(lines))] = generator.choice(_UNREADABLE)
    path.write_bytes(b"\n".join([*lines, b""]))


def _remove(path: Path, *_: object) -> None:
    path.unlink()


def _exchange(path: Path, generator: random.Random, others: list[Path]) -> None:
    path.write_bytes(generator.choice(others).read_bytes())


EDITS = int(os.environ.get("JOURNAL_EDITS", "2"))
"""Seeded edits of the files of each campaign, one after the other."""


@pytest.mark.parametrize("command", COMMANDS)
def test_a_damaged_journal_or_record_is_refused_or_changes_nothing(
    campaigns, recorded, command, monkeypatch, capsys
):
    cuts, add = itertools.count(), Journal.add

    def cut(journal, event, **facts):
        shutil.copytree("whole", f"cut-{next(cuts)}")
        add(journal, event, **facts)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "add", cut)
        assert campaigns(command, "whole") in (0, 3)
    expected, moments = records("whole"), next(cuts)
    for number in range(EDITS):
        generator = random.Random(f"{command} {number}")
        moment = Path("whole")
        if generator.random() < 0.7:
            moment = Path(f"cut-{generator.randrange(3, moments)}")
        shutil.rmtree("edited", ignore_errors=True)
        shutil.copytree(moment, "edited", ignore=shutil.ignore_patterns(".cnnbench-lock"))
        what = f"{number} {moment}: {edit(Path('edited'), generator)}"
        kept = records("edited")
        capsys.readouterr()
        code = campaigns(command, "edited", resume=True)
        err = capsys.readouterr().err
        assert "Traceback" not in err, what
        lines = [line for line in err.splitlines() if " error: " in line]
        if "_tear" not in what:
            assert (code, len(lines)) == (2, 1), (what, err)
        if code == 2:
            assert records("edited") == kept, what
        else:
            assert (code in (0, 3), lines) == (True, []), (what, err)
            assert records("edited") == expected, (what, err)
