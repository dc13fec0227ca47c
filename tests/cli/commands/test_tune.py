"""``cnnbench tune`` from the command line, with processes that only write records."""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import shutil
from types import SimpleNamespace

import pytest

from cnnbench.campaigns.ab import side
from cnnbench.campaigns.processes.journal import Journal
from cnnbench.campaigns.tune import environment, race
from cnnbench.cli import main
from cnnbench.cli.commands import tune as command_line
from cnnbench.judge.compare import load_records
from cnnbench.plan import parse_run
from cnnbench.records.campaigns import AS_GIVEN

pytestmark = pytest.mark.timeout(300)

GIVEN = ("--model=lenet", "--num_gpus=2", "--batch_size=4", "--device=cpu")
MODES = {"modes": ({}, *({"variable_update": n} for n in ("replicated", "mirrored_strategy")))}
FIXED = ("--xla=false", "--xla_compile=false", "--num_intra_threads=1", "--num_inter_threads=1")
FAST = {"--variable_update=replicated": 1.2, "--variable_update=mirrored_strategy": 0.5}


@pytest.fixture(scope="module")
def search(fake_python):
    """search(FOLDER, FLAG...): exit code of a search, over two modes if nothing else is given."""

    def run(folder, *flags, given=GIVEN, **say):
        words = ["--minutes=2", f"--results={folder / 'r'}"]
        words += [] if "--resume" in flags else ["--seed=5"]
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)  # in no repository, so that git has nothing to look through
            patch.setattr(side, "sys", SimpleNamespace(executable=fake_python))
            patch.setattr(race, "MOST_ROUNDS", 3)
            if given is GIVEN:
                patch.setattr(command_line, "search_groups", lambda *_, **situation: MODES)
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


def advised(err):
    """The words of the command that is advised, of which there is one."""
    (command,) = re.findall(r": (cnnbench tune .*)", err)
    return shlex.split(command)


def test_the_candidates_are_listed_with_what_is_dropped(call):
    fixed = [word for word in FIXED if "intra" not in word]
    listed = call("tune", *GIVEN, *fixed, "--list").out.splitlines()
    ends = [at for at, line in enumerate(listed) if line in ("", listed[-1])]
    assert listed[0].startswith("aggregation: ")
    assert listed[1:3] == ["  as given", "  local_parameter_device=cpu"]
    assert "  variable_update=replicated" in listed[: ends[0]]
    dropped = [line for line in listed[: ends[0]] if line.startswith("  dropped: ")]
    assert any("means the same as" in line for line in dropped)
    assert [line.partition(":")[0] for line in listed if line[:1].strip()] == [
        *("aggregation", "threads", "environment")
    ]


@pytest.mark.slow
def test_the_winner_comes_first_and_its_flag_file_reads_back(again, tmp_path, call):
    file = tmp_path / "fast.flags"
    code, out, err = again(f"--write_flagfile={file}")
    assert code == 0, err
    words = shlex.split(out.splitlines()[0])
    assert words == ["cnnbench", *GIVEN, "--variable_update=replicated"]
    back = parse_run([f"--flagfile={file}"])
    assert back.params == parse_run(words[1:]).params
    # Ordinary records, which other commands read.
    pairs = [str(tmp_path / "r" / "final" / side) for side in ("a", "b")]
    allowed = "--allow_different=variable_update,all_reduce"
    call("compare", *pairs, "--paired", allowed)
    call("report", tmp_path / "r", "--format=markdown")


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["--pairing=alternate", "--minutes=3"])
def test_a_search_goes_on_as_it_was_asked(again, transcript, flag):
    code, _, err = again(flag)
    assert code == 2
    assert "--results=" in err
    transcript(flag, err.splitlines()[-1])


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


def test_a_proof_that_fails_says_why(tune):
    code, out, err = tune("--format=json", by_flag=FAST, fail=["0002-b"], message="no kernel")
    found = json.loads(out)
    assert (code, found["verdict"], found["pairs"]) == (4, "open", 2)
    assert found["failure"] == found["reason"] == "B: no kernel"
    assert err.splitlines()[-1].endswith(found["failure"])


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
    words = advised(err)
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
        "--format=json", interrupt=second_round, once=str(tmp_path / "once"), by_flag=FAST
    )
    assert code == 130
    rows = {row["candidate"]: row for row in json.loads(out)["rows"]}
    assert {row["processes"] for row in rows.values()} == {1}
    assert "variable_update=replicated" in rows
    assert "--resume" in advised(err)


@pytest.mark.slow
def test_a_search_whose_time_was_up_says_how_much_is_enough(tune, tmp_path):
    code, out, err = tune("--minutes=0.01", by_flag=FAST, wait=0.3)  # half of its time for one
    assert code == 3
    assert "--minutes=1 would be enough" in " ".join(out.split())
    before = traced(tmp_path)
    assert tune("--minutes=0.01", "--resume", by_flag=FAST)[:2] == (3, out)
    assert traced(tmp_path) == before
    words = advised(err)
    at = words.index("--")
    assert words[:2] == ["cnnbench", "tune"]
    assert {"--minutes=1", "--pairing=alternate", "--seed=5", "--model=lenet"} < set(words[:at])
    assert not [word for word in words if word.startswith(("--results", "--resume"))]
    longer = tmp_path / "longer"
    longer.mkdir()
    code, out, err = tune("--minutes=1", f"--results={longer / 'r'}", by_flag=FAST)
    assert code == 0, err
    assert out.splitlines()[0].endswith("--variable_update=replicated")
    assert "cnnbench tune " not in err


ONE_TOWER = ("--model=lenet", "--batch_size=4", "--device=cpu")
ALLOCATOR = "LD_PRELOAD=libtcmalloc_minimal.so.4"


@pytest.mark.slow
def test_an_environment_that_wins_is_part_of_the_command_line(
    tune, tmp_path, monkeypatch, transcript
):
    monkeypatch.setattr(environment, "why_unusable", lambda name, value: "")
    dimensions, library = environment.dimensions({}), ALLOCATOR.partition("=")[2]
    one_allocator = [
        [one for one in values if one.get("LD_PRELOAD", library) == library]
        for values in dimensions
    ]
    monkeypatch.setattr(environment, "dimensions", lambda given: one_allocator)
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
