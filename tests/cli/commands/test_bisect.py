"""cnnbench bisect: from two revisions to a commit, in a repository whose commits have a speed."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from forked import until

from cnnbench.campaigns.ab import lengths
from cnnbench.records.load import load_records

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.usefixtures("quick_processes", "quick_answers"),
]

PATIENCE = 60.0


@pytest.fixture
def repository(tmp_path, git):
    """Makes a repository whose commits hold what their processes do; see fake_python.py."""

    def make(*says):
        folder = tmp_path / "repository"
        folder.mkdir()
        git(folder, "init", "--quiet", "--initial-branch=main")
        stream = []
        for number, say in enumerate(says):
            text = json.dumps(say)
            stream += [
                "commit refs/heads/main",
                f"committer a <a@b> {1700000000 + number} +0000",
                f"data <<END\ncommit {number}\nEND",
                f"M 100644 inline fake.json\ndata <<END\n{text}\nEND",
            ]
        git(folder, "fast-import", "--quiet", stdin="\n".join(stream) + "\n")
        git(folder, "reset", "--quiet", "--hard")
        return folder

    return make


@pytest.fixture
def words(fake_python, tmp_path):
    """The command line of a bisection of such a repository."""

    def words(*arguments, python=fake_python, flags=("--model=lenet",)):
        sides = [f"--repository={tmp_path}/repository"]
        sides += [f"--python={python}"] if python else []
        quick = ["--pairs=6", "--burn_in=0", f"--results={tmp_path}/results"]
        quick.append("--pairing=alternate")
        return ["bisect", *sides, *quick, *arguments, "--", *flags]

    return words


@pytest.fixture
def bisect(call, words):
    """What a bisection prints that ends with this exit code."""
    return lambda *arguments, code=0, **more: call(*words(*arguments, **more), code=code)


@pytest.fixture
def nothing_is_left(git):
    """No worktree, no lock, no branch: the repository is as it was."""
    return lambda folder: (
        git(folder, "worktree", "list").count("\n") == 0
        and not (folder / ".git" / "worktrees").exists()
        and git(folder, "status", "--porcelain") == ""
        and git(folder, "for-each-ref", "--format=%(refname)") == "refs/heads/main"
    )


@pytest.mark.slow
def test_the_one_of_thirty_commits_is_found_among_some_that_do_not_build(
    call, repository, bisect, tmp_path, git, nothing_is_left
):
    says = [{"speed": 100 if number < 11 else 80, "salt": number} for number in range(30)]
    for number in (13, 14, 15):
        says[number] = {"die": "no such layer"}
    folder = repository(*says)
    bad = git(folder, "rev-parse", "main~18")
    out = bisect("main~29", "main").out
    assert f"{bad} " in out
    assert "commit 11\n" in out
    assert nothing_is_left(folder)
    page = call("report", tmp_path / "results", "--format=markdown").out
    head, _, sections = page.partition("\n## Bisection\n")
    assert f"- 🔴 Bisection: {bad} " in head
    assert "  - commit 11\n" in head
    assert "No regression" not in head
    assert f"| {bad[:12]} | bad | -" in sections


def test_flags_are_checked_before_there_is_a_worktree(repository, bisect, monkeypatch):
    repository({"speed": 100}, {"speed": 50})
    monkeypatch.setattr("cnnbench.campaigns.bisect.search.worktree", None)
    err = bisect("main~1", "main", python=None, flags=("--no_flag=1",), code=2).err
    assert err.startswith("cnnbench: error: ")
    assert "--no_flag" in err
    err = bisect("main~1", "main", flags=("--export_dir=m",), code=2).err
    assert err.startswith("cnnbench: error: --export_dir=m: ")


def test_records_of_all_steps_are_ordinary_ones(
    call, repository, bisect, tmp_path, git, monkeypatch, fake_python
):
    folder = repository({"speed": 100}, {"speed": 101, "salt": 1}, {"speed": 50, "salt": 2})
    out = bisect("main~2", "main").out
    good, same, bad = git(folder, "rev-list", "--reverse", "main").splitlines()
    # Its commits are unknown outside of the repository.
    sides = f"--a_checkout={same[:12]} --b_checkout={bad[:12]}"
    sides += f" --a_python={fake_python} --b_python={fake_python}"
    again = f"cnnbench ab {sides} -- --model=lenet\n"
    assert f": cd {folder} && {again}" in out
    assert out.endswith(f": cd {folder} && cnnbench explain {sides} -- --model=lenet\n")
    with monkeypatch.context() as patch:
        patch.chdir(folder)
        assert f": {again}" in bisect("main~2", "main", "--resume").out
    loaded = load_records([tmp_path / "results"])
    assert loaded.skipped == ()
    counts = {}
    for record in loaded.records:
        subject = record.subject
        assert (subject.repository, subject.dirty) == ("repository", False)
        key = (subject.side, subject.revision)
        counts[key] = counts.get(key, 0) + 1
    assert counts == {("a", good): 12, ("b", same): 6, ("b", bad): 6}
    history = call("history", f"{tmp_path}/results", f"--git={folder}", "--format=json").out
    (series,) = json.loads(history)["series"]
    assert [point["name"] for point in series["points"]] == [good, same, bad]


def test_an_interrupt_keeps_whole_pairs_and_resume_goes_on(
    repository, bisect, tmp_path, git, nothing_is_left
):
    parent = {"parent": os.getpid(), "interrupt": ["0003-b"]}
    stop = tmp_path / "stop"
    says = [{"speed": 100}, {"speed": 101, "salt": 1, "once": str(stop), **parent}, {"speed": 50}]
    folder = repository(*says)
    stop.touch()
    bad = git(folder, "rev-parse", "--short=12", "main")
    out, err = bisect("main~2", "main", code=130)
    (row,) = [line.split() for line in out.splitlines() if line.startswith(bad)]
    assert row[:2] == [bad, "bad"]
    assert out.endswith("\n2 commits may be the first bad one\n")
    assert re.search(r": cnnbench bisect .* --resume -- --model=lenet", err)
    assert err.endswith("cnnbench: error: interrupted\n")
    assert nothing_is_left(folder)
    commit = git(folder, "rev-parse", "--short=12", "main~1")
    step = tmp_path / "results" / commit
    before = {path.name: path.read_bytes() for path in step.glob("?/*.json")}
    assert {"0001-a.json", "0002-b.json"} <= before.keys()
    assert "0003-b.json" not in before
    assert "--resume" in bisect("main~2", "main", code=2).err
    err = bisect("main~2", "main~1", "--resume", code=2).err
    assert "BAD (" in err
    out, err = bisect("main~2", "main", "--resume")
    assert err.count(", as measured before\n") == 1
    assert f"{git(folder, 'rev-parse', 'main')} " in out
    assert all((step / name[5] / name).read_bytes() == data for name, data in before.items())
    again, err = bisect("main~2", "main", "--resume")
    assert again == out
    assert "pair" not in err


def test_a_flag_file_that_does_not_come_with_the_commits_is_a_part_of_the_question(
    repository, bisect, tmp_path
):
    repository({"speed": 100}, {"speed": 50})
    for lines, code in (("", 0), ("--batch_size=4\n", 2)):
        (tmp_path / "flags").write_text(f"--model=lenet\n{lines}")
        resume = ["--resume"] if lines else []
        done = bisect("main~1", "main", *resume, flags=[f"--flagfile={tmp_path}/flags"], code=code)
    assert "batch_size (not set, now 4)" in done.err


@pytest.mark.slow
def test_a_kill_leaves_nothing_behind(repository, words, tmp_path, git, nothing_is_left):
    folder = repository({"speed": 100, "wait": 60}, {"speed": 50, "wait": 60})
    command = [sys.executable, "-m", "cnnbench", *words("main~1", "main")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        logs = tmp_path / "results"
        until(
            lambda: any(log.stat().st_size for log in logs.glob("*/logs/*.log")), PATIENCE, process
        )
        assert len(git(folder, "worktree", "list").splitlines()) == 3
    finally:
        process.kill()
        process.wait()
    until(lambda: nothing_is_left(folder) and not running_in(tmp_path), PATIENCE)


def running_in(folder):
    """Whether a process has this folder on its command line or as its place of work."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(os.fsencode(folder) in word for word in words):
                return True
    return False


@pytest.mark.parametrize(
    ("says", "status", "message"),
    [
        (({"speed": 100}, {"speed": 100, "salt": 1}), 3, ": same"),
        (({"speed": 50}, {"speed": 100}), 3, "GOOD and which"),
        (({"speed": 100}, {"die": "no such layer"}), 4, " B: ended with exit code 1; "),
    ],
)
def test_without_a_difference_or_without_runs(
    repository, bisect, says, status, message, nothing_is_left
):
    folder = repository(*says)
    assert message in bisect("main~1", "main", code=status).err
    assert nothing_is_left(folder)


def going_on(err):
    """The words of the command that goes on."""
    (command,) = re.findall(
        r"^cnnbench: (?:to go on|for a verdict): cnnbench (.*)$", err, re.MULTILINE
    )
    return shlex.split(command)


@pytest.mark.slow
@pytest.mark.parametrize(
    "says",
    [
        pytest.param(({"speed": 100}, {"speed": 80, "scatter": 0.3, "salt": 6}), id="the last"),
        pytest.param(
            ({"speed": 100}, {"speed": 75, "scatter": 0.5, "salt": 2}, {"speed": 60, "salt": 3}),
            id="one between",
        ),
    ],
)
def test_the_printed_command_repeats_the_search_with_enough_pairs(
    call, repository, bisect, says, tmp_path, git
):
    folder = repository(*says)
    (tmp_path / "flags").write_text("--pairs=6\n")
    flags = ("--seed=1", f"--flagfile={tmp_path}/flags")
    bisect(f"main~{len(says) - 1}", "main", *flags, code=3)
    # The search is over, so its comparisons are not continued with more pairs.
    err = bisect(f"main~{len(says) - 1}", "main", *flags, "--pairs=9", "--resume", code=2).err
    assert "pairs (6, now 9)" in err
    err = bisect(f"main~{len(says) - 1}", "main", *flags, "--resume", code=3).err
    assert re.search(r"[0-9a-f]{12} is undecided: ", err)
    words = going_on(err)
    (pairs,) = re.findall(r"a new experiment of (\d+) pairs settles it, as measured before\n", err)
    assert {f"--pairs={pairs}", f"--results={tmp_path}/results-{pairs}"} <= {*words}
    assert not [word for word in words if "resume" in word]
    out = call(*words).out
    assert f"{git(folder, 'rev-parse', 'main')} " in out


@pytest.mark.slow
def test_what_needs_more_pairs_than_there_may_be_gives_no_command(repository, bisect):
    repository({"speed": 100, "scatter": 10}, {"speed": 100, "scatter": 10, "salt": 2})
    err = bisect("main~1", "main", code=3).err
    assert "more pairs will not help" in err
    assert "cnnbench: for a verdict, first find what disturbs the machine: cnnbench env" in err


@pytest.mark.parametrize(("flags", "seconds"), [(("--pairing=auto",), 0.3), ((), 0.0)])
def test_pairs_step_in_turn_where_they_can(repository, bisect, tmp_path, flags, seconds, git):
    folder = repository({"speed": 100, "turns": True}, {"speed": 50, "turns": True})
    bisect("main~1", "main", "--pairs=1", *flags, code=3)
    commit = git(folder, "rev-parse", "--short=12", "main")
    settings = json.loads((tmp_path / "results" / commit / "settings.json").read_text())
    assert settings["turn_seconds"] == seconds
    assert (settings["a"]["checkout"], settings["b"]["revision"]) == (None, commit)


@pytest.mark.slow
def test_turns_that_cannot_be_are_wrong_use_or_skip_a_commit(repository, bisect, git):
    folder = repository({"turns": True}, {"speed": 80}, {"speed": 50, "turns": True})
    err = bisect("main~2", "main~1", "--pairing=turns", code=2).err
    assert re.search("--pairing=turns: .* side B: ", err)
    assert "BAD (" in bisect("main~2", "main", "--pairing=turns", "--resume", code=2).err
    results = f"--results={folder}-turns"
    err = bisect("main~2", "main", "--pairing=turns", results, code=3).err
    skipped = git(folder, "rev-parse", "--short=12", "main~1")
    assert re.search(rf"{skipped} .*--pairing=turns: ", err)


@pytest.mark.slow
def test_a_commit_whose_processes_are_killed_is_measured_again_later(
    call, repository, bisect, tmp_path, git
):
    kills = {"kill": {"0001-b": 2}, "kills": str(tmp_path)}
    once = {"kill": {"0002-b": 1}, "kills": str(tmp_path)}
    folder = repository({"speed": 100}, {"speed": 101, "salt": 1, **kills}, {"speed": 50, **once})
    err = bisect("main~2", "main", code=3).err
    assert "pair 2 is measured again: B was killed by SIGKILL" in err
    assert re.search("skipped: B: .*SIGKILL.*; twice in a row", err)
    out, err = call(*going_on(err))
    assert f"{git(folder, 'rev-parse', 'main')} " in out
    assert "SIGKILL" not in err


@pytest.mark.slow
def test_where_only_skipped_ones_are_left_all_are_named(repository, bisect, git):
    folder = repository({"speed": 100}, {"speed": 80}, {"speed": 60, "salt": 2})
    build = "--build=! grep -q 80 fake.json"
    out = bisect("main~2", "main", build, code=3).out
    assert "these 2" in out
    skipped = git(folder, "rev-parse", "--short=12", "main~1")
    assert re.search(rf"{skipped} commit 1\n +skipped: .*: the command ended with exit code 1", out)


@pytest.mark.slow
def test_other_work_is_what_is_looked_for_where_bad_has_it(repository, bisect, git):
    wider = {"speed": 50, "model": {"training_flops_per_image": 6000}}
    says = [{"speed": 100}, {"speed": 90, "salt": 1}, wider, {**wider, "salt": 3}]
    folder = repository(*says)
    out = bisect("main~3", "main").out
    assert f"{git(folder, 'rev-parse', 'main~1')} " in out
    assert "bad: other work" in out


def test_flags_that_good_cannot_run_are_wrong_use(repository, bisect, nothing_is_left, git):
    folder = repository({}, {})
    good, bad = (git(folder, "rev-parse", "--short=12", name) for name in ("main~1", "main"))
    (folder / "fake.json").write_text("uncommitted")
    err = bisect("main~1", "main", python=None, flags=["--model=lenett"], code=2).err
    assert f"GOOD ({good}): --model=lenett: unknown" in err
    assert f"BAD is the commit {bad}\n" in err  # and not the uncommitted changes
    git(folder, "checkout", "--quiet", "fake.json")
    assert nothing_is_left(folder)


def test_lengths_are_chosen_from_the_noise(repository, bisect, tmp_path, monkeypatch):
    monkeypatch.setattr(lengths, "choose_seconds", lambda noise, plan, shortest: shortest)
    repository({"speed": 800, "scatter": 0}, {"speed": 400, "scatter": 0, "salt": 1})
    bisect("main~1", "main", "--burn_in=1")
    paths = tmp_path.glob("results/**/0001-?.json")
    records = [json.loads(path.read_text()) for path in paths]
    assert len(records) == 2
    assert all("--num_batches=150" in record["command"] for record in records)
    assert all(record["ab"]["chose_steps"] for record in records)
