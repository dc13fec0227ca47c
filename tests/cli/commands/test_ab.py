"""cnnbench ab: from the command line to a verdict."""

from __future__ import annotations

import html
import json
import os
import re
import shlex
import subprocess

import pytest

from cnnbench import cli
from cnnbench.records.run import RunRecord

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def ab(fake_python, quick_processes, quick_answers, tmp_path, monkeypatch):
    """Runs the command with both sides' processes faked."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments, results="results"):
        sides = [f"--a_python={fake_python}", "--burn_in=0", f"--results={results}"]
        sides += [] if "--aa" in arguments else [f"--b_python={fake_python}"]
        return cli.main(["ab", *sides, *arguments])

    return run


@pytest.mark.parametrize(
    ("speed", "more"),
    [(90, ()), (100, ("--threshold=7",)), (90, ("--nosequential", "--alpha=0.02"))],
)
def test_compare_comes_to_the_same_verdict_from_the_files(ab, capsys, speed, more):
    status = ab(f"--b_env=SPEED={speed}", "--pairs=9", "--format=json", *more)
    out, err = capsys.readouterr()
    command = re.search(r"the same from the files: (.*)", err).group(1)
    assert "--threshold=7" not in more or "--threshold=7.0 " in f"{command} "
    assert cli.main([*shlex.split(command)[1:], "--format=json"]) == status
    first, second = json.loads(out), json.loads(capsys.readouterr().out)
    for document in (first, second):
        del document["base"], document["new"]
    assert first == second


@pytest.mark.parametrize(
    ("flags", "steps"), [((), 500), (("--seconds=9",), 900), (("--", "--num_batches=7"), 7)]
)
def test_how_many_timed_steps_a_process_makes(ab, tmp_path, flags, steps):
    # 100 steps of 8 images per second; the slower side decides.
    speeds = ["--a_env=SPEED=800", "--b_env=SPEED=900"]
    ab("--burn_in=1", "--pairs=1", *speeds, *flags)
    document = json.loads((tmp_path / "results" / "b" / "0001-b.json").read_text())
    assert int(document["config"]["num_batches"]) == pytest.approx(steps, rel=0.01)


@pytest.mark.parametrize(
    ("speed", "scatter", "told", "word", "code"),
    [
        (90, 0.003, "B is 10.", "- slower", 1),
        (100, 0.003, "B and A are the same: ", "= same", 0),
        (120, 0.003, "B is 20.", "+ faster", 0),
        (100, 0.1, "Undecided: ", "? inconclusive", 3),
        (100, 3, "Too noisy to tell: ", "? inconclusive", 3),
    ],
)
def test_all_outputs_of_an_experiment_give_the_same_answer(
    ab, capsys, monkeypatch, speed, scatter, told, word, code
):
    monkeypatch.setenv("COLUMNS", "1000")
    sides = [{"speed": 100, "scatter": scatter}, {"speed": speed, "scatter": scatter, "salt": "b"}]
    flags = [f"--{n}_env=FAKE={json.dumps(say)}" for n, say in zip("ab", sides, strict=True)]
    assert ab(*flags, "--pairs=8", "--seed=5") == code
    out, err = capsys.readouterr()
    answer = out.splitlines()[0]
    assert answer.startswith(told)
    assert word in out
    command = shlex.split(re.search(r"the same from the files: (.*)", err).group(1))[1:]
    command.remove("--paired")
    shown = {}
    for name in ("table", "json", "markdown", "junit", "github"):
        assert cli.main([*command, f"--format={name}"]) == code
        shown[name] = html.unescape(capsys.readouterr().out.replace("%25", "%"))
    assert cli.main(["report", "results", "--format=markdown"]) == 0
    shown["report"] = html.unescape(capsys.readouterr().out)
    assert {name: answer in text for name, text in shown.items()} == dict.fromkeys(shown, True)
    assert json.loads(shown["json"])["answer"] == answer
    assert shown["table"].startswith(answer)


def _git(*arguments):
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run(["git", *who, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_records_name_the_revision_and_the_side(ab, capsys, tmp_path):
    _git("init", "--quiet", "--initial-branch=main")
    for name in ("base", "change"):
        _git("commit", "--quiet", "--allow-empty", "-m", name)
    base, change = (_git("rev-parse", name) for name in ("HEAD~1", "HEAD"))
    ab(f"--a_checkout={base}", "--b_checkout=main", "--b_env=SPEED=50", "--pairs=6")
    for side, revision in (("a", base), ("b", change)):
        for path in (tmp_path / "results" / side).iterdir():
            assert json.loads(path.read_text())["subject"] == {
                "repository": tmp_path.name,
                "revision": revision,
                "dirty": False,
                "side": side,
                "labels": {},
            }
    capsys.readouterr()
    # The history of the gate has a point of each, and a report a row.
    assert cli.main(["history", "results", "--format=json"]) == 0
    (series,) = json.loads(capsys.readouterr().out)["series"]
    points = {point["name"]: len(point["values"]) for point in series["points"]}
    assert points == {base: 6, change: 6}
    # In the order of the commits, whichever of a pair was first, and the head is the newest.
    assert list(points) == [base, change]
    assert cli.main(["history", "results", "--format=github-action-benchmark"]) == 0
    (newest,) = json.loads(capsys.readouterr().out)
    assert newest["value"] == pytest.approx(50.0, rel=0.1)
    assert f"revision: {change}" in newest["extra"]
    assert cli.main(["report", "results", "--format=csv"]) == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    assert [f"side {side}, " in row for side, row in zip("AB", rows, strict=True)] == [True, True]


def test_a_side_measured_twice_is_one_and_the_same(ab, tmp_path):
    assert ab("--aa", "--pairs=1") == 0
    sides = {json.loads(p.read_text())["subject"]["side"] for p in tmp_path.glob("results/?/*")}
    assert sides == {"a"}


def test_flags_variables_and_python_of_the_sides_may_differ_in_the_files_too(ab, capsys):
    arguments = ("--b=--variable_update=replicated", "--b_env=SPEED=120", "--pairs=6")
    assert ab(*arguments, "--", "--model=lenet") == 0
    out, err = capsys.readouterr()
    assert "+ faster" in out
    assert "--allow_different=variable_update" in err
    assert "SPEED=" not in err


def test_few_pairs_are_warned_of_and_inconclusive(ab, capsys):
    assert ab("--b_env=SPEED=50", "--pairs=4") == 3
    out, err = capsys.readouterr()
    assert "warning: a verdict needs at least 6 pairs, not 4" in err
    few = r"Undecided: 4 pairs are too few to prove a change, of whatever size; 8 pairs\s"
    assert re.match(few + r"could prove one of \d\.\d\s%\.", out)
    assert re.search(
        r"\(about .* at most\): cnnbench ab --resume --results=results --pairs=12 ", err
    )


def test_a_failed_process_is_exit_code_4_and_named(ab, capsys):
    assert ab('--b_env=FAKE={"die": "too slow to measure"}') == 4
    out, err = capsys.readouterr()
    assert "! failed" in out
    assert "error: B: exit status 1; last log line: too slow to measure" in err


def test_processes_that_are_killed_are_told_of_both_sides_and_nothing_else(ab, tmp_path, capsys):
    fake = json.dumps({"kill": {"0001-a": 9, "0001-b": 9}, "kills": str(tmp_path)})
    assert ab(f"--a_env=FAKE={fake}", f"--b_env=FAKE={fake}", "--b_env=OTHER=1") == 4
    out, err = capsys.readouterr()
    killed = "ended by SIGKILL; last log line: about to measure"
    sides = [f"1 of 1 run in {side} failed: Killed: {killed}" for side in ("BASE", "NEW")]
    assert "; ".join(sides) in " ".join(out.split())
    assert "also different" not in out
    assert err.count("pair 1 is measured again: A was killed by SIGKILL and B was killed") == 2
    assert f"error: A: {killed}; B: {killed}; no repeat is left" in err


def test_what_a_killed_process_did_not_find_out_is_no_difference(ab, tmp_path, capsys):
    fake = json.dumps({"kill": {"0001-b": 9}, "kills": str(tmp_path)})
    assert ab(f"--b_env=FAKE={fake}") == 4
    out = capsys.readouterr().out
    assert "1 of 1 run in NEW failed" in out
    assert "unknown" not in out
    assert "model_parameters" not in out


def test_an_interrupt_gives_the_verdict_on_what_there_is(ab, capsys):
    fake = json.dumps({"speed": 50, "interrupt": ["0007-b"], "parent": os.getpid()})
    assert ab("--nosequential", f"--b_env=FAKE={fake}", "--format=json") == 130
    out, err = capsys.readouterr()
    assert json.loads(out)["exit_code"] == 130
    (entry,) = json.loads(out)["configurations"]
    assert entry["verdict"] == "slower"
    assert len(entry["base_runs"]) == len(entry["new_runs"]) == 6
    assert err.endswith("error: interrupted\n")
    assert "the same from the files" in err


def test_aa_measures_the_spread_that_compare_takes(ab, tmp_path, capsys):
    assert ab("--aa", "--pairs=6", results="aa") == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[-1].startswith("exit code 0")
    spread = re.search(r"A/A spread of throughput: (\d+\.\d) % .*12 processes", err)
    assert float(spread.group(1)) < 1
    assert ab("--b_env=SPEED=90", "--baseline_aa=aa", "--format=json") == 1
    out, err = capsys.readouterr()
    (entry,) = json.loads(out)["configurations"]
    assert 0 < entry["results"][0]["noise"] < 0.01
    assert "--baseline_aa=aa" in err


NOISY = json.dumps({"scatter": 0.3})


def test_the_exit_code_that_is_printed_is_that_of_the_command(ab, capsys):
    # So noisy that no verdict comes of it: of A/A measurements that is no matter.
    assert ab("--aa", "--pairs=6", f"--a_env=FAKE={NOISY}") == 0
    out = capsys.readouterr().out
    assert "? inconclusive" in out
    assert out.splitlines()[-1] == "exit code 0: an A/A measurement, whatever the verdict"


def test_an_inconclusive_end_gives_the_command_that_goes_on(ab, capsys, tmp_path):
    noise = [f"--{side}_env=FAKE={json.dumps({'scatter': 0.1, 'salt': side})}" for side in "ab"]
    assert ab(*noise, "--pairs=8", "--seed", "5", "--", "--model=lenet") == 3
    out, err = capsys.readouterr()
    reason = " ".join(out.split())
    assert re.search(r"pairs differ by \d+\.\d %: about \d+ more pairs settle it", reason)
    assert "geometric mean" not in out
    (advice,) = re.findall(r"to settle it \(about .* at most\): (.*)", err)
    words = shlex.split(advice)
    assert words[:4] == ["cnnbench", "ab", "--resume", "--results=results"]
    pairs = int(words[4].removeprefix("--pairs="))
    assert 8 < pairs <= 1000
    assert pairs % 4 == 0
    assert words[5:] == noise
    # Whoever compares the records advises the same, without the values of variables.
    command = re.search(r"the same from the files: (.*)", err).group(1)
    assert cli.main(shlex.split(command)[1:]) == 3
    (advice,) = re.findall(r"to settle it: (.*)", capsys.readouterr().err)
    assert shlex.split(advice) == [*words[:5], "--a_env=FAKE=...", "--b_env=FAKE=..."]
    # It goes on where it was.
    before = json.loads((tmp_path / "results" / "journal.jsonl").read_text().splitlines()[0])
    cli.main(words[1:])
    out, err = capsys.readouterr()
    assert "pair 8 " not in err
    assert "pair 9 " in err
    lines = map(json.loads, (tmp_path / "results" / "journal.jsonl").read_text().splitlines())
    journal = list(lines)
    again = [one for one in journal if one["event"] == "ab"][-1]
    assert (again["seed"], again["question"]) == (5, before["question"])
    looks = [one for one in journal if one["event"] == "look"]
    assert [one["pairs"] for one in looks][:2] == [8, again["looks"][0]["pairs"]]
    assert sum(one["alpha"] for one in looks) < 0.04


def test_an_experiment_goes_on_until_it_is_decided(ab, capsys, tmp_path):
    """5 % slower, undecided after eight pairs of a noisy machine."""
    fake = [{"speed": 100, "scatter": 0.06}, {"speed": 94, "scatter": 0.06, "salt": "b"}]
    noise = [f"--{n}_env=FAKE={json.dumps(say)}" for n, say in zip("ab", fake, strict=True)]
    assert ab(*noise, "--pairs=8", "--seed=5", "--explain=never", "--", "--model=lenet") == 3
    more = ["ab", "--resume", "--results=results", "--explain=never", *noise]
    code, sessions = 3, 0
    while code == 3 and sessions < 8:
        code, sessions = cli.main(more), sessions + 1
    assert code == 1, capsys.readouterr().err
    processes = (tmp_path / "results" / "journal.jsonl").read_text().count('"process"')
    capsys.readouterr()
    # A clear verdict stands, and nothing more is measured.
    assert cli.main([*more, "--pairs=500"]) == 1
    assert "B is " in capsys.readouterr().out
    assert (tmp_path / "results" / "journal.jsonl").read_text().count('"process"') == processes


def test_what_cannot_go_on_is_refused(ab, capsys, tmp_path, monkeypatch):
    noise = [f"--{n}_env=FAKE={json.dumps({'scatter': 0.1, 'salt': n})}" for n in "ab"]
    assert ab(*noise, "--pairs=8", "--seed=5", "--", "--model=lenet") == 3
    assert ab("--nosequential", "--pairs=2", *noise, results="once") == 3
    (tmp_path / "other").mkdir()
    capsys.readouterr()

    def refused(*flags, results="results"):
        assert cli.main(["ab", "--resume", f"--results={results}", *flags]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        (line,) = err.splitlines()
        return line.removeprefix("cnnbench: error: ")

    other = "is not of the experiment in results; leave it out, or name another folder"
    assert refused("--threshold=1", *noise) == f"--threshold=1.0: {other}"
    assert refused("--seed=6", *noise) == f"--seed=6: {other}"
    assert refused(*noise, "--", "--model=vgg11") == f"'--model=vgg11' behind -- {other}"
    assert refused(*noise, "--pairs=7") == "--pairs=7: results has 8 pairs already"
    stored = "whose values are not stored: --a_env=FAKE=..."
    assert refused().endswith(stored)
    nothing = "holds no experiment of cnnbench ab to go on with"
    assert refused(results="other") == f"--results=other: {nothing}"
    assert refused(results="none") == f"--results=none: {nothing}"
    assert "is judged once (--nosequential, --aa)" in refused(*noise, results="once")
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    assert refused(*noise).startswith("--results=results: holds an experiment with another mach")
    monkeypatch.undo()
    assert cli.main(["ab", "--resume"]) == 2
    assert "--resume=true: needs --results" in capsys.readouterr().err


@pytest.mark.parametrize(("flags", "status"), [((), 1), (("--allow_changed_work",), 0)])
def test_other_work_is_a_verdict_after_one_pair(ab, capsys, flags, status):
    wider = json.dumps({"speed": 3, "model": {"training_flops_per_image": 6000}})
    assert ab(f"--b_env=FAKE={wider}", *flags) == status
    out, err = capsys.readouterr()
    assert "# changed work" in out
    assert "Different network: +" in out
    assert "1+1" in out
    command = re.search(r"the same from the files: (.*)", err).group(1)
    assert cli.main(shlex.split(command)[1:]) == status
    assert "to settle it" not in err


def test_an_experiment_ends_when_a_verdict_has_hardly_a_chance(ab, capsys):
    noise = [f"--{side}_env=FAKE={json.dumps({'scatter': 3, 'salt': side})}" for side in "ab"]
    assert ab(*noise, "--pairs=16", "--seed=5") == 3
    out, err = capsys.readouterr()
    assert "stopped: 16 pairs would hardly give a verdict" in err
    assert "8+8" in out
    assert out.startswith("Too noisy to tell: pairs differ by ")
    assert "More pairs will not help: use longer runs" in out
    assert "to settle it" not in err


def test_a_revision_is_checked_out_and_removed_again(ab, tmp_path, capsys, monkeypatch):
    repository = tmp_path / "repository"
    repository.mkdir()
    monkeypatch.chdir(repository)
    _git("init", "--quiet")
    _git("commit", "--quiet", "--allow-empty", "-m", "first")
    _git("tag", "old")
    arguments = ("--a_checkout=old", "--b_checkout=.", "--pairs=1", f"--results={tmp_path}/r")
    assert ab(*arguments) == 3
    first = json.loads((tmp_path / "r" / "a" / "0001-a.json").read_text())
    folder = first["environment"]["folder"]
    assert folder != str(repository)
    assert not os.path.exists(folder)
    second = json.loads((tmp_path / "r" / "b" / "0001-b.json").read_text())
    assert second["environment"]["folder"] == str(repository)
    listed = subprocess.run(["git", "worktree", "list"], capture_output=True, text=True)
    assert listed.stdout.count("\n") == 1
    assert "A checkout old" not in capsys.readouterr().out.splitlines()


def test_sides_that_cannot_step_in_turn_alternate_and_it_is_said(ab, capsys):
    assert ab("--pairing=auto", "--b_env=SPEED=100", "--pairs=1") == 3
    assert "the sides alternate, since they cannot step in turn: side A" in capsys.readouterr().err
    knows = '--a_env=FAKE={"turns": true}', '--b_env=FAKE={"turns": true, "speed": 50}'
    assert ab("--pairing=auto", *knows, "--pairs=6", results="in_turn") == 1
    assert "alternate" not in capsys.readouterr().err


def test_a_real_process_of_each_side(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = ["--model=trivial", "--data_name=cifar10", "--device=cpu", "--batch_size=2"]
    steps = ["--num_batches=3", "--num_warmup_batches=1", "--peak_flops=1e12"]
    arguments = ["--b=--precision=bf16", "--pairs=1", "--burn_in=0", "--results=r"]
    arguments += ["--pairing=turns"]
    assert cli.main(["ab", *arguments, "--", *flags, *steps]) == 3
    out, _ = capsys.readouterr()
    assert "a verdict needs at least 6 pairs" in out
    (path,) = (tmp_path / "r" / "b").iterdir()
    record = RunRecord.from_json(path.read_bytes())
    assert record.config["precision"] == "bf16"
    assert len(record.step_seconds) == 3
    assert record.turns is not None  # both were alive
    assert record.turns.starts[0] == 1


def test_sides_that_are_jobs(ab, tmp_path, capsys):
    knows = ('--a_env=FAKE={"launches": true}', '--b_env=FAKE={"launches": true, "speed": 50}')
    assert ab("--workers=2", "--ps=1", *knows, "--pairs=6", "--explain=never") == 1
    out, err = capsys.readouterr()
    assert "1 slower" in out  # although every job has other ports
    assert "cannot step in turn: side A: a job of several processes" in err
    journal = (tmp_path / "results" / "journal.jsonl").read_text().splitlines()
    sides = json.loads(journal[0])["sides"]
    assert {side["launch"][0] for side in sides.values()} == {"--workers=2"}
    for path in (tmp_path / "results").glob("?/*.json"):
        config = json.loads(path.read_text())["config"]
        assert [len(config[f"{name}_hosts"].split(",")) for name in ("worker", "ps")] == [2, 1]


def test_a_cnnbench_that_cannot_run_jobs_is_refused(ab, tmp_path, capsys):
    assert ab("--workers=2", '--a_env=FAKE={"launches": true}') == 2
    out, err = capsys.readouterr()
    reason = "the cnnbench of side B has no launch, or cannot be started"
    assert (out, err) == ("", f"cnnbench: error: --workers=2: {reason}\n")
    assert not (tmp_path / "results").exists()


def test_a_real_job_of_each_side(tmp_path, monkeypatch, capsys, loaded_processes):
    monkeypatch.chdir(tmp_path)
    flags = ["--model=trivial", "--data_name=cifar10", "--device=cpu", "--batch_size=2"]
    flags += ["--variable_update=collective_all_reduce", "--num_batches=2"]
    flags += ["--num_warmup_batches=1", "--peak_flops=1e12", "--quiet_conditions=all"]
    arguments = ["--workers=2", "--b=--precision=bf16", "--pairs=1", "--burn_in=0", "--results=r"]
    assert cli.main(["ab", *arguments, "--", *flags]) == 3, capsys.readouterr().err
    (path,) = (tmp_path / "r" / "b").iterdir()
    record = RunRecord.from_json(path.read_bytes())
    assert (record.config["precision"], record.batch.global_) == ("bf16", 4)
    assert len(record.step_seconds) == 2
    assert "?" in capsys.readouterr().out
