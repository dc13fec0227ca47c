"""cnnbench ab: from the command line to a verdict.

Tests cnnbench/cli/commands/ab_*.py, cnnbench/cli/commands/sides.py,
cnnbench/cli/commands/command_lines.py, cnnbench/cli/commands/campaign_flags.py and
cnnbench/cli/commands/next_steps.py; test_going_on.py tests the commands that go on.
"""

from __future__ import annotations

import html
import json
import os
import random
import re
import shlex
import signal
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from covering import slow_if
from step_profiles import CONV, Profiles, changed

from cnnbench.campaigns.ab import futility, lengths
from cnnbench.campaigns.ab.pairs import ExperimentRunner
from cnnbench.campaigns.ab.sessions import find_experiment
from cnnbench.cli.commands import ab_session
from cnnbench.errors import BenchmarkError
from cnnbench.judge.compare import load_records
from cnnbench.judge.explain import explain
from cnnbench.records.run import RunRecord

pytestmark = pytest.mark.timeout(180)

PATIENCE = 30.0
NOISY = {"a": {"scatter": 0.08}, "b": {"scatter": 0.08}}


@pytest.fixture
def ab(call, fake_python, quick_processes, quick_answers, tmp_path, monkeypatch):
    """ab(FLAG..., a=..., b=...): an experiment whose sides do what fake_python.py describes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "1000")

    def ab(*flags, a=None, b=None, results="results", code=None):
        words = [f"--a_python={fake_python}", "--burn_in=0", f"--results={results}"]
        words += [f"--b_python={fake_python}", "--pairing=alternate", *told(a=a, b=b)]
        return call("ab", *words, *flags, code=code)

    return ab


def told(**sides):
    """The flags that tell the sides what to do; their speeds scatter apart from each other."""
    says = {name: {"parent": os.getpid(), "salt": name, **(do or {})} for name, do in sides.items()}
    return [f"--{name}_env=FAKE={json.dumps(say)}" for name, say in says.items()]


def from_files(done):
    """The command that comes to the same verdict from the files."""
    return shlex.split(re.search(r": (cnnbench compare .*)", done.err)[1])[1:]


def journal(event, results="results"):
    lines = Path(results, "events.jsonl").read_text().splitlines()
    return [one for one in map(json.loads, lines) if one["event"] == event]


def settings(results="results"):
    return json.loads(Path(results, "settings.json").read_text())


def processes(results="results"):
    """Names of the processes in the order of their ends."""
    return [one["name"] for one in journal("process", results)]


def to_go_on(done):
    """The words of the command that goes on, of which there is one."""
    (command,) = re.findall(r": (cnnbench ab .*)", done.err)
    return shlex.split(command)


def said(done, word):
    """The lines of standard error that contain a word, without the progress of processes."""
    lines = (line for line in done.err.splitlines() if not line.startswith("cnnbench: ["))
    return "\n".join(line for line in lines if word in line)


def names(folder):
    return sorted(path.stem for path in Path("results", folder).iterdir())


@pytest.mark.parametrize(
    ("speed", "more", "pairs"),
    slow_if(
        lambda case: case[1] != (),
        [
            (90, (), 8),  # the first analysis is clear
            (100, ("--threshold=7",), 8),
            (90, ("--nosequential", "--alpha=0.02"), 9),
        ],
    ),
)
def test_compare_comes_to_the_same_verdict_from_the_files(ab, call, speed, more, pairs):
    code = 1 if speed < 100 else 0
    done = ab("--pairs=9", "--format=json", *more, b={"speed": speed}, code=code)
    assert ("--threshold=7.0" in from_files(done)) == ("--threshold=7" in more)
    assert not re.search(r"=[\d.]{8}", " ".join(from_files(done)))
    again = call(*from_files(done), "--format=json", code=code)
    first, second = (json.loads(one.out) for one in (done, again))
    assert first.pop("repeat").startswith("cnnbench ab --")
    for document in (first, second):
        del document["base"], document["new"]
    assert first == second
    assert [names(side) for side in "ab"] == [
        [f"{number:04d}-{side}" for number in range(1, pairs + 1)] for side in "ab"
    ]


@pytest.mark.parametrize(
    ("flags", "busy", "steps"),
    [
        ((), {}, 300),
        pytest.param((), {"busy": 1.0}, 300, marks=pytest.mark.slow),
        (("--seconds=9",), {}, 900),
        (("--burn_in=0",), {}, None),
        (("--", "--num_batches=7"), {}, 7),
    ],
)
def test_how_many_timed_steps_a_process_makes(ab, monkeypatch, transcript, flags, busy, steps):
    monkeypatch.setattr(lengths, "choose_seconds", lambda noise, plan, shortest: shortest)
    # 100 steps of 8 images per second; the slower side decides.
    sides = {"a": {"speed": 800, "scatter": 0, **busy}, "b": {"speed": 900, "scatter": 0, **busy}}
    done = ab("--burn_in=1", "--pairs=1", *flags, **sides)
    record = json.loads(Path("results/b/0001-b.json").read_text())
    wanted = [] if steps is None else [f"--num_batches={steps}"]
    assert [word for word in record["command"] if "num_batches" in word] == wanted
    # Only a length that the user has not set is no part of the configuration.
    free = steps == 300
    assert record["ab"].get("chose_steps", False) == free
    notes = [note for note in journal("note") if note["note"] == "length"]
    assert [note["steps"] for note in notes] == ([] if steps in (None, 7) else [steps])
    if free:
        transcript("busy" if busy else "idle", said(done, "--num_batches"))
    # Processes of the burn-in are short, and do not count.
    aside = ["burn-in-1-a", "burn-in-1-b"] if steps else []
    assert names("discarded") == aside
    for name in aside:
        text = Path("results/discarded", f"{name}.discarded").read_text()
        assert ("--num_batches=20" in json.loads(text)["command"]) == (steps != 7)
    loaded = load_records(["results"])
    assert (len(loaded.records), loaded.skipped) == (2, ())


def test_one_process_of_each_side_measures_the_peak(ab):
    peak = {"peak_flops_per_sec": 2e11, "peak_flops_source": "measured: matmul"}
    sides = {"a": {"measured": peak}, "b": {"measured": {**peak, "peak_flops_per_sec": 3e11}}}
    ab("--burn_in=1", "--pairs=2", **sides, code=3)
    # Both get the same value, so that the MFU shows no difference.
    rate = 3e11
    for name in "ab":
        burn_in = Path("results", "discarded", f"burn-in-1-{name}.discarded")
        later = sorted(Path("results", name).iterdir())
        commands = [json.loads(path.read_text())["command"] for path in (burn_in, *later)]
        flags = [[word for word in command if "peak" in word] for command in commands]
        assert flags == [[], [f"--peak_flops={rate}"], [f"--peak_flops={rate}"]]


@pytest.mark.parametrize(
    ("speed", "scatter", "verdict", "code", "output"),
    [
        (90, 0.003, "slower", 1, "table"),
        pytest.param(100, 0.3, "inconclusive", 3, "report", marks=pytest.mark.slow),
    ],
)
def test_all_outputs_of_an_experiment_give_the_same_answer(
    ab, call, transcript, speed, scatter, verdict, code, output
):
    sides = {"a": {"scatter": scatter}, "b": {"speed": speed, "scatter": scatter}}
    done = ab("--pairs=8", "--seed=5", **sides, code=code)
    answer = done.out.splitlines()[0]
    transcript(f"{verdict}, scatter {scatter}", answer)
    command = from_files(done)
    command.remove("--paired")
    document = json.loads(call(*command, "--format=json", code=code).out)
    (entry,) = document["configurations"]
    assert (document["answer"], entry["verdict"]) == (answer, verdict)
    if output == "report":
        again = call("report", "results", "--format=markdown")
        assert "\n  - Repeat: <code>cnnbench ab --" in again.out
        answer = headline(answer)
    else:
        again = call(*command, f"--format={output}", code=code)
    assert answer in html.unescape(again.out.replace("%25", "%"))


def headline(answer):
    """The first part of an answer, which a page shows above the others."""
    return re.split("[:;.] ", answer)[0].rstrip(".")


def test_records_name_the_revision_and_the_side(ab, call, git, tmp_path):
    git(".", "init", "--quiet", "--initial-branch=main")
    for name in ("base", "change"):
        git(".", "commit", "--quiet", "--allow-empty", "-m", name)
    base, change = (git(".", "rev-parse", name) for name in ("HEAD~1", "HEAD"))
    ab(f"--a_checkout={base}", "--b_checkout=main", "--pairs=6", b={"speed": 50})
    for side, revision in (("a", base), ("b", change)):
        for path in Path("results", side).iterdir():
            assert json.loads(path.read_text())["subject"] == {
                "repository": tmp_path.name,
                "revision": revision,
                "dirty": False,
                "side": side,
                "labels": {},
            }
    # The history of the gate has a point of each, and a report a row.
    (series,) = json.loads(call("history", "results", "--format=json").out)["series"]
    points = {point["name"]: len(point["values"]) for point in series["points"]}
    assert points == {base: 6, change: 6}
    # In the order of commits, not of measurement; the head is the newest.
    assert list(points) == [base, change]
    (newest,) = json.loads(call("history", "results", "--format=github-action-benchmark").out)
    assert newest["value"] == pytest.approx(50.0, rel=0.1)
    assert f"revision: {change}" in newest["extra"]
    rows = call("report", "results", "--format=csv").out.splitlines()[1:]
    assert [f"side {side}, " in row for side, row in zip("AB", rows, strict=True)] == [True, True]


def test_flags_variables_and_python_of_the_sides_may_differ_in_the_files_too(ab):
    flags = ("--b=--variable_update=replicated", "--pairs=6", "--", "--model=lenet")
    done = ab(*flags, b={"speed": 120, "secret": "hunter2"}, code=0)
    assert "+ faster" in done.out
    assert "--allow_different=variable_update" in done.err
    # Values of environment variables appear nowhere.
    files = (path.read_text() for path in Path("results").rglob("*") if path.is_file())
    assert not any("hunter2" in text for text in (done.out, done.err, *files))


def test_few_pairs_are_warned_of_and_inconclusive(ab, transcript):
    done = ab("--pairs=4", b={"speed": 50}, code=3)
    transcript("answer", done.out.splitlines()[0])
    transcript("warning", said(done, "warning: "))
    assert to_go_on(done)[2:5] == ["--resume", "--results=results", "--pairs=8"]
    assert re.search(r"^cnnbench: \[1/8\] pair 1 .* images/sec \(", done.err, re.MULTILINE)


@pytest.mark.parametrize(
    ("how", "a", "b", "flags"),
    slow_if(
        lambda case: case[0] in ("crashes", "exits in turn", "hangs in turn"),
        [
            ("exits", {}, {"die": "too slow"}, ()),
            ("fails", {"fail": ["0003-a"]}, {}, ()),
            ("crashes", {}, {"fail": ["0003-b"], "crash": True}, ()),
            ("hangs", {}, {"wait": PATIENCE}, ("--timeout=0.5",)),
            ("exits in turn", {}, {"die": "no more"}, ("--pairing=turns",)),
            ("hangs in turn", {}, {"wait": PATIENCE}, ("--pairing=turns", "--timeout=1")),
        ],
    ),
)
def test_a_process_that_fails_ends_it_with_records_of_both_sides(ab, transcript, how, a, b, flags):
    done = ab("--pairs=3", *flags, a={"turns": True, **a}, b={"turns": True, **b}, code=4)
    assert "! failed" in done.out
    transcript(how, said(done, "error: "), numbers=False)
    pairs = 3 if "fail" in {**a, **b} else 1
    states = [json.loads(p.read_text())["status"] for p in sorted(Path("results").glob("?/*.json"))]
    assert sorted(states) == ["failed", *["ok"] * (2 * pairs - 1)]
    assert states[pairs - 1 if a else -1] == "failed"


def kills(folder, name, kill=(), **more):
    """A side whose processes are ended by a signal, so often by the names of their records."""
    return {"kill": dict(kill), "kills": str(folder), "salt": name, **more}


def test_a_pair_that_lost_a_process_is_left_out_and_counted(ab, call, tmp_path, holds, transcript):
    a = kills(tmp_path, "a", {"0005-a": 1, "burn-in-1-a": 1})
    b = kills(tmp_path, "b", {"0003-b": 1})
    flags = ("--pairs=16", "--burn_in=1", "--seed=1", "--format=json")
    done = ab(*flags, a=a, b=b, code=0)
    how = "killed by SIGKILL"
    of_a, of_b = ([{"side": side, "how": how}] for side in "ab")
    lost = journal("lost")
    found = [(one["pair"], one["lost"], one["again"]) for one in lost]
    lost_sides = (("burn-in-1", of_a), ("0003", of_b), ("0005", of_a))
    assert found == [(name, sides, True) for name, sides in lost_sides]
    transcript("pairs", said(done, "SIGKILL"))
    assert names("a") == [f"{n:04d}-a" for n in range(1, 9)]
    aside = {f"{pair}-{side}-lost" for pair in ("0003", "0005") for side in "ab"}
    assert aside < set(names("discarded"))
    assert aside < set(names("logs"))
    # The order of every pair is that which the seed draws without a loss, too.
    ab(*flags, a=kills(tmp_path, "a"), b=kills(tmp_path, "b"), results="calm")
    order = processes()
    pairs = [order[i : i + 2] for i in range(0, len(order), 2)]
    once = [pair for pair, later in zip(pairs, [*pairs[1:], None], strict=True) if pair != later]
    assert [name for pair in once for name in pair] == processes("calm")
    # Whoever compares the records finds them.
    for text in (done.out, call(*from_files(done), "--format=json").out):
        document = json.loads(text)
        (note,) = document["notes"]
        transcript("note", note)
        assert document["repeated_pairs"] == 2
        holds("comparison", document)
    holds("run", json.loads(Path("results/b/0003-b.json").read_text()))
    holds("journal", *lost)
    suite = ElementTree.fromstring(call(*from_files(done), "--format=junit").out).find("testsuite")
    assert suite.find("properties/property[@name='repeated_pairs']").get("value") == "2"


def test_two_killed_pairs_in_a_row_end_it_and_a_resumed_experiment_has_one_attempt(
    ab, call, tmp_path, transcript
):
    killed = {"0001-b": 1, "0002-b": 1, "0003-b": 2}
    done = ab(
        "--pairs=8", "--seed=5", a=kills(tmp_path, "a"), b=kills(tmp_path, "b", killed), code=4
    )
    error = said(done, "error: ")
    transcript(f"pairs killed: {len(killed)}", error)
    assert "! failed" in done.out
    # Facts that a killed process did not record are no differences.
    assert "model_parameters" not in done.out
    before = len(processes())

    def resumed(kill, code):
        sides = told(a=kills(tmp_path, "a"), b=kills(tmp_path, "b", kill))
        return call("ab", "--resume", "--results=results", "--format=json", *sides, code=code)

    assert said(resumed(dict.fromkeys(killed, 99), code=4), "error: ") == error
    assert len(processes()) == before + 2
    # Pairs lost in the first session are counted in the result of the second one.
    assert json.loads(resumed({}, code=0).out)["repeated_pairs"] == 3


@pytest.mark.parametrize(("b", "again"), [({"0001-b": 9}, 1), ({}, 0)])
def test_processes_that_are_killed_or_fail_are_told_of_both_sides(
    ab, tmp_path, transcript, b, again
):
    fails = {} if b else {"fail": ["0001-b"]}
    done = ab(a=kills(tmp_path, "a", {"0001-a": 9}), b=kills(tmp_path, "b", b, **fails), code=4)
    assert [one["again"] for one in journal("lost")].count(True) == again
    notes = (line for line in done.out.splitlines() if line.startswith(("Failed: ", "note: ")))
    text = "\n".join((*notes, said(done, "SIGKILL")))
    transcript("both killed" if b else "one fails", text)


@pytest.mark.parametrize(
    ("where", "flags", "pairs", "verdict"),
    slow_if(
        lambda case: "--pairing=turns" in case[1],
        [
            (["0001-a", "0001-b"], (), 0, None),
            (["0007-b"], ("--nosequential",), 6, "inconclusive"),
            (["0002-b"], ("--pairing=turns",), 1, "inconclusive"),
        ],
    ),
)
def test_an_interrupt_keeps_whole_pairs_without_a_verdict(ab, where, flags, pairs, verdict):
    say = {"interrupt": where, "turns": True}
    done = ab("--format=json", *flags, a=say, b={"speed": 50, **say}, code=130)
    document = json.loads(done.out)
    assert document["exit_code"] == 130
    assert [one["verdict"] for one in document["configurations"]] == ([verdict] if pairs else [])
    assert len(names("a")) == len(names("b")) == pairs
    assert "cnnbench compare" not in done.err
    assert shlex.split(document["next_step"]) == to_go_on(done)
    assert to_go_on(done)[2:5] == ["--resume", "--results=results", "--pairs=16"]
    assert journal("end")[0]["interrupted"]


def test_a_half_that_counts_is_measured_again_with_a_half_that_is_lost(ab, call, tmp_path):
    order = [f"0001-{side}" for side in ("ab" if random.Random("1 0001").random() < 0.5 else "ba")]
    say = {"interrupt": order[1:]}
    ab("--pairs=1", "--seed=1", a=say, b=say, code=130)
    assert (processes(), names("discarded")) == (order[:1], order[:1])
    lose = {side: kills(tmp_path, side, {order[1]: 1}) for side in "ab"}
    call("ab", "--resume", "--results=results", *told(**lose), code=3)
    assert processes() == [order[0], order[1], *order]
    assert [*names("a"), *names("b")] == ["0001-a", "0001-b"]
    document = json.loads(Path(f"results/{order[0][-1]}/{order[0]}.json").read_text())
    assert len(document["ab"]["lost"]) == 1


def test_equal_sides_are_an_experiment_like_any_other(ab, call, transcript):
    same = {"salt": "both", "scatter": 0.001}
    done = ab("--pairs=6", a=same, b=same, code=0)
    transcript("notice", "".join(said(done, "are the same; ")))
    assert done.out.startswith("B and A are the same: ")
    assert {one.subject.side for one in load_records(["results"]).records} == {"a", "b"}
    assert call(*from_files(done), code=0).out.startswith("B and A are the same: ")


@pytest.mark.slow
def test_an_inconclusive_end_gives_the_command_that_goes_on(ab, call, transcript):
    done = ab("--pairs=8", "--seed", "5", "--", "--model=lenet", **NOISY, code=3)
    transcript("answer", done.out.splitlines()[0])
    words = to_go_on(done)
    assert words[:4] == ["cnnbench", "ab", "--resume", "--results=results"]
    pairs = int(words[4].removeprefix("--pairs="))
    assert 8 < pairs <= 1000
    assert pairs % 4 == 0
    assert words[5:] == ["--a_env=FAKE=...", "--b_env=FAKE=..."]
    # Whoever compares the records advises the same.
    assert to_go_on(call(*from_files(done), code=3)) == words
    stored = settings()
    assert stored["seed"] == 5
    # It goes on where it was.
    done = call(*words[1:5], *told(**NOISY), code=None)
    assert "pair 8 " not in done.err
    assert "pair 9 " in done.err
    first, again = journal("session")
    assert settings() == stored
    assert first["pairs"] == 8
    assert again["pairs"] == pairs
    made = find_experiment(Path("results")).past_analyses
    assert made[0].pairs == 8
    assert made[-1].spent < 1


REMOTE = "hg::https://me:swordfish@example.com/nets?private_token=swordfish#swordfish"


def test_secrets_are_in_no_output_and_no_file(ab, call, git, tmp_path):
    for words in ("init -q", "add .", "commit -q --allow-empty -m first"):
        git(tmp_path, *words.split())
    git(tmp_path, "config", "remote.origin.url", REMOTE)
    own = (
        "--b_env=MY_API_TOKEN=swordfish",
        "--b_env",
        "OMP_TOKEN=swordfish",
        "--b_env=OMP_STACKSIZE=4M",
    )
    done = ab("--pairs=8", "--seed=5", "--explain=never", *own, "--nosequential", **NOISY, code=3)
    compared = call(*from_files(done), "--format=json", "--output=compared.json", code=3)
    shown = call("report", "results", "--format=csv")
    said = [text for one in (done, compared, shown) for text in (one.out, one.err)]
    said += [path.read_text() for path in Path().rglob("*") if path.suffix and path.is_file()]
    assert len(said) > 20
    assert not [text for text in said if "swordfish" in text]
    assert json.loads(Path("results/a/0001-a.json").read_text())["subject"]["repository"] == (
        "example.com"
    )
    # A command to go on has the values that records have, too.
    variables = [word for word in to_go_on(done) if word.startswith("--b_env=")]
    assert sorted(variables) == [
        "--b_env=FAKE=...",
        "--b_env=MY_API_TOKEN=...",
        "--b_env=OMP_STACKSIZE=4M",
        "--b_env=OMP_TOKEN=...",
    ]
    assert {*variables} < {*settings()["repeat"]}


def test_an_experiment_goes_on_until_it_is_decided(ab, call):
    """4 % slower, undecided after eight pairs of a noisy machine."""
    sides = {"a": {"scatter": 0.06}, "b": {"speed": 96.5, "scatter": 0.06, "salt": 5}}
    ab("--pairs=8", "--seed=5", "--explain=never", "--", "--model=lenet", **sides, code=3)
    more = ["ab", "--resume", "--results=results", "--explain=never", *told(**sides)]
    done = call(*more, "--pairs=12", code=None)
    assert journal("session")[-1]["pairs"] == 12
    for _ in range(8):
        done = call(*more, code=None)
        if "? inconclusive" not in done.out:
            break
    assert "- slower" in done.out, done.err
    before = processes()
    # A clear verdict stands, and nothing more is measured.
    assert "B is " in call(*more, "--pairs=500", code=1).out
    assert processes() == before
    assert 500 not in [session["pairs"] for session in journal("session")]


def test_what_cannot_go_on_is_refused(ab, call, monkeypatch, transcript):
    ab("--pairs=8", "--seed=5", "--", "--model=lenet", **NOISY, code=3)
    ab("--nosequential", "--pairs=2", results="once", **NOISY, code=3)
    noise = told(**NOISY)

    def refused(case, named, *flags, results="results"):
        out, err = call("ab", "--resume", f"--results={results}", *flags, code=2)
        assert (out, err.count("\n")) == ("", 1)
        assert named in err
        transcript(case, err)

    refused("threshold", "--threshold=1:", "--threshold=1", *noise)
    refused("seed", "--seed=6:", "--seed=6", *noise)
    refused("model", "'--model=vgg11'", *noise, "--", "--model=vgg11")
    refused("pairs", "--pairs=7:", *noise, "--pairs=7")
    refused("variables", "--a_env=FAKE=...")
    refused("judged once", "--nosequential", *noise, results="once")

    def ends(self):
        raise BenchmarkError("as killed before the first pair")

    with monkeypatch.context() as patch:
        patch.setattr(ExperimentRunner, "_run_until_end", ends)
        ab("--nosequential", "--pairs=2", results="early", **NOISY, code=4)
    call("ab", "--resume", "--results=early", *noise, code=3)  # nothing was judged yet
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    refused("environment", "--results=results:", *noise)


def test_a_folder_with_other_files_is_refused(ab, transcript):
    Path("results").mkdir()
    Path("results", "old.json").touch()
    error = said(ab(code=2), "error: ")
    assert os.listdir("results") == ["old.json"]
    assert "--results=results:" in error
    transcript("other files", error)


OTHER_WORK = {"model": {"training_flops_per_image": 6000}}


@pytest.mark.parametrize(
    ("b", "flags", "code", "word"),
    [
        (OTHER_WORK, (), 1, "# changed work"),
        (OTHER_WORK, ("--allow_changed_work",), 0, "# changed work"),
        ({"facts": {"cpu_model": "Slow CPU"}}, (), 3, "x not comparable"),
    ],
)
def test_what_more_pairs_cannot_change_is_a_verdict_after_one(ab, call, b, flags, code, word):
    done = ab(*flags, b={"speed": 3, **b}, code=code)
    call(*from_files(done), code=code)
    assert word in done.out
    assert "1+1" in done.out
    again = re.findall(": cnnbench ab (.*)", done.err)
    allows = [flag for line in again for flag in line.split() if "--allow_" in flag]
    assert allows == (["--allow_different=cpu_model"] if word == "x not comparable" else [])
    assert len(again) == len(allows)


@pytest.mark.slow
def test_an_analysis_that_is_not_clear_ends_an_experiment_without_a_chance(ab, transcript):
    sides = {"a": {"scatter": 0.8}, "b": {"scatter": 0.8}}
    done = ab("--pairs=16", "--seed=5", **sides, code=3)
    assert len(processes()) == 16
    assert "8+8" in done.out
    transcript("answer", done.out.splitlines()[0])
    transcript("stopped", said(done, "16 pairs"))
    assert ": cnnbench ab " not in done.err
    # Goes on while a verdict is possible.
    ab("--pairs=16", "--seed=5", a={"scatter": 0.05}, b={"scatter": 0.05}, results="calm")
    assert len(processes("calm")) > 16


@pytest.mark.slow
def test_cpu_time_decides_where_other_programs_disturb(ab, monkeypatch, transcript):
    noisy = {"scatter": 0.9, "busy": 1.0}
    a, b = {"cpu": 0.08, **noisy}, {"cpu": 0.09, **noisy}
    done = ab("--seed=1", "--explain=never", a=a, b=b, code=1)
    transcript("decided", said(done, "after 12 pairs"))
    # Half of the first analysis' share is out of reach of 8 pairs. Goes on while CPU time may
    # decide.
    a, b = {**a, "cpu_scatter": 0.05}, {**b, "cpu": 0.083, "cpu_scatter": 0.05}
    chance, found = futility.clear_verdict_probability, {"cpu": [], "wall": []}
    for sides, results in (((a, b), "cpu"), ((noisy, noisy), "wall")):
        kept = found[results]
        monkeypatch.setattr(
            futility,
            "clear_verdict_probability",
            lambda *of, to=kept: to.append(chance(*of)) or to[-1],
        )
        ab("--seed=1", "--explain=never", a=sides[0], b=sides[1], results=results)
    assert max(found["cpu"][:2]) > max(found["wall"][:2])  # of the first analysis


def test_under_load_eight_pairs_are_planned(ab, call):
    busy = {"cpu": 0.08, "busy": 1.0, "scatter": 0.001}
    flags = ("--burn_in=1", "--explain=never")
    for pairs, measured in (("6", 8), ("1", 1)):
        results = f"of{pairs}"
        code = 1 if measured == 8 else 3
        b = {**busy, "speed": 50}
        done = ab(f"--pairs={pairs}", *flags, a=busy, b=b, results=results, code=code)
        assert len(list(Path(results, "a").iterdir())) == measured
    done = call("compare", "of6/a", "of6/b", code=1)
    assert "8+8" in done.out
    (state,) = [find_experiment(Path("of6"))]
    assert state.past_analyses == ((8, 0.8),)
    assert state.pair_limits[0] == 8


def test_a_revision_is_checked_out_and_removed_again(ab, git, tmp_path, monkeypatch):
    repository = tmp_path / "repository"
    repository.mkdir()
    monkeypatch.chdir(repository)
    git(repository, "init", "--quiet")
    git(repository, "commit", "--quiet", "--allow-empty", "-m", "first")
    git(repository, "tag", "old")
    commit = git(repository, "rev-parse", "--short=12", "old")
    (repository / "net.py").touch()
    done = ab("--a_checkout=old", "--b_checkout=.", "--pairs=1", f"--results={tmp_path}/r")
    assert f": A is the commit {commit}\n" in done.err  # its uncommitted changes are B's only
    folders = [
        json.loads((tmp_path / "r" / side / f"0001-{side}.json").read_text())["environment"][
            "folder"
        ]
        for side in "ab"
    ]
    assert folders[0] != str(repository) == folders[1]
    assert not os.path.exists(folders[0])
    assert git(repository, "worktree", "list").count("\n") == 0


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ("ab", ("--b_checkout=nothing",)),
        ("ab", ("--b=--no_flag=1",)),
        ("ab", ("--b=' unclosed",)),
        ("ab", ("--b_python=/nowhere",)),
        ("explain", ("--b=--graph_file=g.txt",)),
    ],
)
def test_flags_are_checked_before_there_is_a_worktree(
    call, git, tmp_path, monkeypatch, command, wrong
):
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "-m", "first")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cnnbench.campaigns.ab.opening.worktree", None)
    sides = ("--a_checkout=HEAD", "--b_checkout=HEAD", *wrong)
    err = call(command, *sides, "--", "--plugin=net.py", code=2).err
    assert err.count("\n") == 1


def test_commits_that_git_has_not_accepted_yet(call, git, tmp_path, monkeypatch, transcript):
    """As in a hook pre-receive, whose objects are in a quarantine."""
    git(tmp_path, "init", "--quiet")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_QUARANTINE_PATH", str(tmp_path))
    err = call("ab", f"--a_checkout={'1' * 40}", code=2).err
    assert err.startswith("cnnbench: error: --a_checkout=")
    transcript("quarantine", err)


def test_sides_that_cannot_step_in_turn_alternate_and_it_is_said(ab, transcript):
    done = ab("--pairing=auto", "--pairs=1", code=3)
    assert settings()["turn_seconds"] == 0.0
    transcript("alternate", said(done, "side A"))


@pytest.mark.slow
@pytest.mark.parametrize("in_turn", [True, False])
def test_both_halves_of_a_pair_are_alive_where_they_step_in_turn(ab, tmp_path, in_turn, holds):
    say = {"turns": in_turn, "trace": str(tmp_path / "trace")}
    flags = () if in_turn else ("--cool_down=0.1",)
    ab("--pairing=auto", "--pairs=3", "--burn_in=1", "--seed=3", *flags, a=say, b=say)
    holds("journal", *journal("session"))
    holds("settings", start := settings())
    assert (start["turn_seconds"], start["seed"]) == (0.3 if in_turn else 0.0, 3)
    order = processes()
    said = (tmp_path / "trace").read_text().splitlines()
    if in_turn:
        for first in range(0, 8, 2):
            pair = order[first : first + 2]
            assert set(said[2 * first : 2 * first + 2]) == set(pair)  # both have started
            assert said[2 * first + 2 : 2 * first + 4] == pair  # then they step, as drawn
    else:
        assert said == order
        times = [datetime.fromisoformat(one["time"]) for one in journal("process")]
        assert all((later - one).total_seconds() >= 0.1 for one, later in pairwise(times))
    for number, name in enumerate(order[2:]):
        document = json.loads(Path("results", name[-1], f"{name}.json").read_text())
        place = {"side": name[-1], "seed": 3, "pair": int(name[:4])}
        assert document["ab"] == {**place, "position": 1 + number % 2, "chose_steps": True}
    assert {name[-1] for name in order[::2]} == {"a", "b"}


TINY = ["--model=trivial", "--data_name=cifar10", "--device=cpu", "--batch_size=2"]
TINY += ["--num_warmup_batches=1", "--peak_flops=1e12"]


@pytest.mark.slow
def test_a_real_process_of_each_side(tmp_path, monkeypatch, call, quick_answers):
    monkeypatch.chdir(tmp_path)
    flags = ["--b=--precision=bf16", "--pairs=1", "--burn_in=0", "--results=r", "--pairing=turns"]
    call("ab", *flags, "--", *TINY, "--num_batches=3", code=3)
    (path,) = Path("r", "b").iterdir()
    record = RunRecord.from_json(path.read_bytes())
    assert record.config["precision"] == "bf16"
    assert len(record.step_seconds) == 3
    assert record.turns is not None  # both were alive
    assert record.turns.starts[0] == 1


def test_sides_that_are_jobs(ab, transcript):
    a, b = {"launches": True}, {"launches": True, "speed": 50}
    flags = ("--pairing=auto", "--workers=2", "--ps=1", "--pairs=6", "--explain=never")
    done = ab(*flags, a=a, b=b, code=1)
    assert "- slower" in done.out  # although every job has other ports
    assert (start := settings())["turn_seconds"] == 0.0
    transcript("alternate", said(done, "side A"))
    assert {start[side]["launch"][0] for side in "ab"} == {"--workers=2"}
    for path in Path("results").glob("?/*.json"):
        config = json.loads(path.read_text())["config"]
        assert [len(config[f"{name}_hosts"].split(",")) for name in ("worker", "ps")] == [2, 1]


def test_a_cnnbench_that_cannot_run_jobs_is_refused(ab, transcript):
    out, err = ab("--workers=2", a={"launches": True}, code=2)
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("cnnbench: error: --workers=2: ")
    transcript("no launch", err)
    assert not Path("results").exists()


def test_a_real_job_of_each_side(tmp_path, monkeypatch, call, loaded_processes, quick_answers):
    monkeypatch.chdir(tmp_path)
    flags = ["--workers=2", "--b=--precision=bf16", "--pairs=1", "--burn_in=0", "--results=r"]
    mode = ["--variable_update=collective_all_reduce", "--quiet_conditions=all"]
    done = call("ab", *flags, "--", *TINY, *mode, "--num_batches=2", code=3)
    (path,) = Path("r", "b").iterdir()
    record = RunRecord.from_json(path.read_bytes())
    assert (record.config["precision"], record.batch.global_) == ("bf16", 4)
    assert len(record.step_seconds) == 2
    assert "?" in done.out


@pytest.fixture
def profiled(monkeypatch, lenet_runs):
    """What the profiler of `ab` is asked for: profiled(stop=True) interrupts it."""
    profiles = Profiles(lenet_runs())
    slower = changed(lambda part: part[:2] == ("conv1", CONV), 2.0)
    asked = []

    def begin(stop=False):
        class Profiler:
            def __init__(self, **_):
                asked.append(stop)

            def explain(self):
                if stop:
                    os.kill(os.getpid(), signal.SIGTERM)
                return explain(profiles.side(), profiles.side(slower))

        monkeypatch.setattr(ab_session, "AbProfiler", Profiler)
        return asked

    return begin


@pytest.mark.slow
def test_an_interrupt_while_profiling_is_the_exit_code_that_is_printed(
    ab, call, profiled, transcript
):
    profiled(stop=True)
    done = ab("--pairs=8", b={"speed": 50}, code=130)
    assert "- slower" in done.out
    transcript("exit code", done.out.splitlines()[-1])
    transcript("not explained", said(done, "explained"))
    assert to_go_on(done)[2:4] == ["--resume", "--results=results"]
    asked = profiled()
    words = ["ab", "--resume", "--results=results", *told(a={}, b={"speed": 50})]
    done = call(*words, code=1)
    assert ("conv1" in done.out, asked) == (True, [True, False])
    # The explanation is in the journal, so nothing is profiled again.
    again = call(*words, code=1)
    assert (again.out, asked) == (done.out, [True, False])
