"""``cnnbench tune`` from the command line, with processes that only write records."""

from __future__ import annotations

import csv
import functools
import io
import json
import os
import re
import shlex
import shutil
from types import SimpleNamespace

import pytest

from cnnbench.campaigns.ab import side
from cnnbench.campaigns.ab.sessions import find_experiment
from cnnbench.campaigns.processes.journal import Journal
from cnnbench.campaigns.strategies.weights import WeightDistance
from cnnbench.campaigns.tune import bench, environment, race
from cnnbench.campaigns.tune import search as searches
from cnnbench.cli import main
from cnnbench.judge.compare import load_records
from cnnbench.plan import parse_run
from cnnbench.records.campaigns import AS_GIVEN

pytestmark = pytest.mark.timeout(300)

GIVEN = ("--model=lenet", "--num_gpus=2", "--batch_size=4", "--device=cpu")
SPACE = """\
entries:
  - name: modes
    matrix: {variable_update: [replicated, mirrored_strategy, independent]}
"""
FAST = {"--variable_update=replicated": 1.2, "--variable_update=mirrored_strategy": 0.5}


@pytest.fixture(scope="module")
def search(fake_python):
    """search(FOLDER, FLAG...): exit code of a search over a few modes, of a folder with a space."""

    def run(folder, *flags, given=GIVEN, distance=(0.0, ""), **say):
        (folder / "space.yaml").write_text(SPACE)
        words = [f"--space={folder / 'space.yaml'}"] if given is GIVEN else []
        words += ["--minutes=2", f"--results={folder / 'r'}"]
        words += [] if "--resume" in flags else ["--seed=5"]
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)  # in no repository, so that git has nothing to look through
            patch.setattr(side, "sys", SimpleNamespace(executable=fake_python))
            patch.setattr(race, "MOST_ROUNDS", 3)
            tuned = WeightDistance(*distance)
            patch.setattr(searches, "stored_weight_distances", lambda *_: {"tuned": tuned})
            told = {"parent": os.getpid(), "trace": str(folder / "trace"), **say}
            patch.setenv("FAKE", json.dumps(told))
            return main(["tune", *given[:2], *words, *flags, "--", *given[2:]])

    return run


@pytest.fixture
def tune(search, quick_processes, tmp_path, capsys):
    """Exit code, standard output and error of `search` whose processes are forked."""

    def run(*flags, **more):
        code = search(tmp_path, "--pairing=alternate", *flags, **more)
        return code, *capsys.readouterr()

    return run


@pytest.fixture(scope="module")
def finished(search, tmp_path_factory):
    """The folder of a search that one mode has won; its processes stepped in turn."""
    folder = tmp_path_factory.mktemp("search")
    assert search(folder, by_flag=FAST) == 0
    return folder


@pytest.fixture
def again(finished, tmp_path, tune):
    """The same search with other flags, resumed: all of its processes have run."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return functools.partial(tune, "--resume", "--pairing=turns", by_flag=FAST)


def traced(folder):
    """Names of the processes that were started."""
    return (folder / "trace").read_text().split()


def to_go_on(err):
    """The words of the command that goes on, of which there is one."""
    (command,) = re.findall(r": (cnnbench tune .*)", err)
    return shlex.split(command)


def test_the_candidates_are_listed_with_what_is_dropped(call, tmp_path):
    (tmp_path / "space.yaml").write_text(SPACE)
    listed = call("tune", *GIVEN, "--list", f"--space={tmp_path / 'space.yaml'}").out
    candidates, dropped = listed.splitlines()[1:4], listed.splitlines()[4:]
    assert candidates == [
        *("  as given", "  variable_update=replicated", "  variable_update=mirrored_strategy")
    ]
    (line,) = dropped
    assert "--allow=consistency" in line
    assert line.endswith(": variable_update=independent")


@pytest.mark.slow
def test_the_winner_comes_first_and_its_flag_file_reads_back(again, tmp_path, call):
    file, plot = tmp_path / "fast.flags", tmp_path / "race.svg"
    outputs = (f"--write_flagfile={file}", f"--plot={plot}")
    code, out, err = again(*outputs)
    assert code == 0, err
    words = shlex.split(out.splitlines()[0])
    assert words == ["cnnbench", *GIVEN, "--variable_update=replicated"]
    back = parse_run([f"--flagfile={file}"])
    assert back.params == parse_run(words[1:]).params
    assert "mirrored_strategy" in plot.read_text()
    # Ordinary records, which other commands read.
    pairs = [str(tmp_path / "r" / "final" / side) for side in ("a", "b")]
    allowed = "--allow_different=variable_update,all_reduce"
    call("compare", *pairs, "--paired", allowed)
    call("report", tmp_path / "r", "--format=markdown")


@pytest.mark.slow
def test_processes_of_a_search_share_their_time_in_one_way(again, transcript):
    code, _, err = again("--pairing=alternate")
    assert code == 2
    assert "--results=" in err
    transcript("another pairing", err.splitlines()[-1])


def test_what_a_search_leaves(again, tmp_path, holds):
    code, out, _ = again("--format=json")
    assert code == 0
    holds("tune", found := json.loads(out))
    assert found["command"][1:] == [*GIVEN, "--variable_update=replicated"]
    assert (found["verdict"], found["leader"]) == ("faster", "variable_update=replicated")
    assert found["pairs"] == 8  # the first interim analysis
    rows = {row["candidate"]: row for row in found["rows"]}
    assert rows["variable_update=mirrored_strategy"]["left"] == "slower"
    folder = tmp_path / "r"
    races = load_records([folder / "race"]).records
    assert len(races) == sum(row["processes"] for row in rows.values()) + 1  # the first process
    assert len(load_records([folder / "final"]).records) == 16
    events = list(Journal(folder / "events.jsonl").read())
    holds("journal", *events)
    assert events[-1]["document"] == found
    target = tmp_path / "rows.csv"
    target.write_text("candidate,flags\n")  # which may be replaced
    code, out, _ = again("--format=csv", f"--output={target}")
    assert (code, out) == (0, "")
    written = list(csv.DictReader(io.StringIO(target.read_text())))
    assert [row["candidate"] for row in written] == list(rows)


def test_a_final_that_fails_says_why(tune):
    code, out, err = tune("--format=json", by_flag=FAST, fail=["0002-b"], message="no kernel")
    found = json.loads(out)
    assert (code, found["verdict"], found["pairs"]) == (4, "open", 2)
    assert found["failure"] == found["reason"] == "B: no kernel"
    assert err.splitlines()[-1].endswith(found["failure"])


def test_a_winner_that_trains_differently_is_a_failure(again, transcript):
    code, out, err = again(distance=(0.5, "w"))
    assert code == 4
    assert shlex.split(out.splitlines()[0]) == ["cnnbench", *GIVEN]
    transcript("other weights", err.splitlines()[-1])


@pytest.mark.slow
def test_an_interrupted_search_goes_on_where_it_was(tune, tmp_path):
    code, out, _ = tune("--format=json", by_flag=FAST)
    whole, order = json.loads(out), traced(tmp_path)
    os.rename(tmp_path / "r", tmp_path / "whole")
    (tmp_path / "trace").unlink()
    (tmp_path / "once").touch()
    at = order[2]  # in the first round
    code, out, err = tune(interrupt=[at], once=str(tmp_path / "once"), by_flag=FAST)
    assert (code, out, traced(tmp_path)) == (130, "", order[:3])
    words = to_go_on(err)
    at = words.index("--")
    assert "--model=lenet" in words[:at]
    assert words[at - 2 :] == [
        *(f"--results={tmp_path / 'r'}", "--resume", "--", "--batch_size=4", "--device=cpu")
    ]
    code, _, err = tune()
    assert code == 2
    assert "--resume" in err
    code, out, _ = tune("--resume", "--format=json", by_flag=FAST)
    resumed, found = json.loads(out), traced(tmp_path)
    assert code == 0
    assert found == [*order[:3], *order[2:]]  # what was done is not measured again
    assert (resumed["verdict"], resumed["leader"]) == (whole["verdict"], whole["leader"])


@pytest.mark.slow
def test_an_interrupted_search_prints_what_the_races_have_measured(tune, finished, tmp_path):
    (tmp_path / "once").touch()
    second_round = [name for name in traced(finished) if name.endswith("-r2")]
    code, out, err = tune(
        "--format=csv", interrupt=second_round, once=str(tmp_path / "once"), by_flag=FAST
    )
    assert code == 130
    rows = {row["candidate"]: row for row in csv.DictReader(io.StringIO(out))}
    assert {row["processes"] for row in rows.values()} == {"1"}
    assert "variable_update=replicated" in rows
    assert "--resume" in to_go_on(err)


@pytest.mark.slow
def test_a_search_whose_time_was_up_goes_on_with_more(tune, tmp_path):
    code, out, err = tune("--minutes=0.01", by_flag=FAST, wait=0.3)  # half of its time for one
    assert code == 3
    words = to_go_on(err)
    at = words.index("--")
    assert words[:2] == ["cnnbench", "tune"]
    assert words[at - 3 : at] == [f"--results={tmp_path / 'r'}", "--minutes=1", "--resume"]
    assert {"--pairing=alternate", "--seed=5", *GIVEN} < set(words)
    assert "--minutes=0.01" not in words
    before = traced(tmp_path)
    assert (
        tune("--minutes=0.01", "--resume", by_flag=FAST)[1].splitlines()[:5]
        == (out.splitlines()[:5])
    )
    assert traced(tmp_path) == before  # no more time, nothing more
    code, out, err = tune("--resume", by_flag=FAST)
    assert code == 0, err
    assert out.splitlines()[0].endswith("--variable_update=replicated")
    assert "cnnbench tune " not in err
    done = traced(tmp_path)
    assert done[: len(before)] == before
    assert len(set(done)) == len(done)  # what was measured stays


@pytest.mark.slow
def test_a_final_that_had_time_for_few_pairs_gets_more_of_the_same_level(
    tune, tmp_path, monkeypatch
):
    monkeypatch.setattr(bench.RaceBenchmark, "final_process_seconds", 7.0)
    say = {"by_flag": {"--variable_update=replicated": 1.03}, "scatter": 0.06, "salt": 3}
    short = json.loads(tune("--format=json", **say)[1])
    assert (short["verdict"], short["pairs"]) == ("open", 8)
    found = json.loads(tune("--format=json", "--minutes=5", "--resume", **say)[1])
    assert found["pairs"] > 8
    events = list(Journal(tmp_path / "r" / "events.jsonl").read())
    plans = [event["plan"] for event in events if event.get("note") == "final"]
    assert [(plan["pairs"], plan["number"]) for plan in plans] == [(8, 1), (16, 1)]
    assert plans[1]["alpha"] == plans[0]["alpha"] == 0.04
    made = find_experiment(tmp_path / "r" / "final").past_analyses
    assert [one.pairs for one in made][:2] == [8, 12]
    assert made[-1].spent < 1
    done = traced(tmp_path)
    assert len(set(done)) == len(done)


@pytest.mark.slow
def test_a_leader_that_is_proven_stays_until_another_one_is(again, tmp_path, monkeypatch):
    proven = json.loads(again("--format=json")[1])
    searched = searches.race_groups

    def another(races):
        found = yield from searched(races)
        return found._replace(
            leader=races.settings.space.make_candidate({"variable_update": "mirrored_strategy"})
        )

    monkeypatch.setattr(searches, "race_groups", another)
    found = json.loads(again("--format=json", "--minutes=10")[1])
    assert list((tmp_path / "r" / "final-2").glob("a/*.json"))
    same = ("verdict", "leader", "command", "gain")
    assert [found[key] for key in same] == [proven[key] for key in same]
    # Processes of both searches count.
    journals = (tmp_path / "r").rglob("events.jsonl")
    events = [event for path in journals for event in Journal(path).read()]
    processes = [one["seconds"] for one in events if one["event"] == "process"]
    assert 0 < found["seconds"] == pytest.approx(sum(processes), abs=0.1)
    plans = [event["plan"] for event in events if event.get("note") == "final"]
    assert {(plan["number"], plan["alpha"]) for plan in plans} == {(1, 0.04), (2, 0.02)}


ONE_TOWER = ("--model=lenet", "--batch_size=4", "--device=cpu")
FIXED = ("--xla=false", "--xla_compile=false", "--num_intra_threads=1", "--num_inter_threads=1")
ALLOCATOR = "LD_PRELOAD=libtcmalloc_minimal.so.4"


@pytest.mark.slow
def test_an_environment_that_wins_is_part_of_the_command_line(
    tune, tmp_path, monkeypatch, transcript
):
    monkeypatch.setattr(environment, "why_unusable", lambda name, value: "")
    dimensions, library = environment.dimensions(), ALLOCATOR.partition("=")[2]
    one_allocator = [
        [one for one in values if one.get("LD_PRELOAD", library) == library]
        for values in dimensions
    ]
    monkeypatch.setattr(environment, "dimensions", lambda: one_allocator)
    before, file = dict(os.environ), tmp_path / "fast.flags"
    fast = {"LD_PRELOAD": 1.2, "GLIBC_TUNABLES": 0.9}
    words = (*ONE_TOWER, *FIXED)
    code, out, err = tune(f"--write_flagfile={file}", given=words, by_variable=fast)
    assert code == 0, err
    line, _, text = out.partition("\n")
    command = shlex.split(line)
    assert command[:3] == ["env", ALLOCATOR, "cnnbench"]
    assert {*command[3:]} == {*words}
    assert f"{ALLOCATOR} " in text
    head, variable, *flags = file.read_text().splitlines()
    assert (variable[0], variable.endswith(f" {ALLOCATOR}")) == ("#", True)
    assert (head[0], flags) == ("#", command[3:])
    (line,) = (line for line in err.splitlines() if str(file) in line)
    transcript("flag file", line)
    # Each process had only the variables of its candidate, and this process has none of them.
    assert dict(os.environ) == before
    seen = []
    for path in (path for path in tmp_path.glob("r/*/**/*.json") if path.name != "settings.json"):
        facts = json.loads(path.read_text())["environment"]
        seen.append({name for name in fast if f"env_{name}" in facts})
    assert {frozenset(names) for names in seen} == {
        frozenset(),
        frozenset({"LD_PRELOAD"}),
        frozenset({"GLIBC_TUNABLES"}),
    }
    found = json.loads(tune("--format=json", "--resume", given=words, by_variable=fast)[1])
    rows = {row["candidate"]: row["variables"] for row in found["rows"]}
    assert rows[AS_GIVEN] == {}
    assert rows[ALLOCATOR] == dict([ALLOCATOR.split("=")])


OF_JOBS = """\
entries:
  - name: packing
    matrix: {variable_update: [null, replicated], gradient_repacking: [null, 8]}
"""


def test_the_winner_of_jobs_is_a_launch(tune, tmp_path, transcript):
    (tmp_path / "jobs.yaml").write_text(OF_JOBS)
    file = tmp_path / "fast.flags"
    flags = (
        "--workers=2",
        "--pairing=auto",
        f"--space={tmp_path / 'jobs.yaml'}",
        f"--write_flagfile={file}",
    )
    code, out, err = tune(*flags, by_flag={"--gradient_repacking=8": 1.2})
    assert code == 0, err
    transcript("notices", "\n".join(line for line in err.splitlines() if ", because " in line))
    line = out.splitlines()[0]
    own = [*GIVEN, "--variable_update=collective_all_reduce", "--gradient_repacking=8"]
    assert shlex.split(line) == ["cnnbench", "launch", "--workers=2", "--", *own]
    assert file.read_text().splitlines()[1:] == own
    for path in (*tmp_path.glob("r/race/*.json"), *tmp_path.glob("r/final/?/*.json")):
        config = json.loads(path.read_text())["config"]
        assert config["worker_hosts"].count("localhost:") == 2, path
    code, _, err = tune("--workers=3", *flags[1:], "--resume")
    assert code == 2
    assert "--results=" in err
    transcript("another job", err.splitlines()[-1], numbers=False)
