"""The measured code in every kind of repository: its own revision, or one line that says why not.

No command changes an index, and none names the repository of the hook that it was started from.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from covering import slow_if

from cnnbench.machine import repository
from cnnbench.records.subject import Subject

pytestmark = pytest.mark.timeout(120)

TINY = ("--model=trivial", "--data_name=cifar10", "--device=cpu", "--batch_size=2")
SHORT = (*TINY, "--num_batches=1", "--num_warmup_batches=0", "--peak_flops=1e12")
DUBIOUS = "detected dubious ownership in repository at '"
NO_GIT = "git cannot be run: No such file or directory"


def without_hook(patch):
    """As outside of any hook, and without a user's configuration of git."""
    for name in repository.environment_for_git().keys() ^ os.environ.keys():
        patch.delenv(name)
    patch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    patch.setenv("GIT_CONFIG_NOSYSTEM", "1")


@pytest.fixture(scope="module")
def original(tmp_path_factory, git):
    """A repository of three commits whose file is their number, and another one."""
    root = tmp_path_factory.mktemp("original")
    with pytest.MonkeyPatch.context() as patch:
        without_hook(patch)
        for name, subjects in (("ours", "123"), ("other", "x")):
            git(root, "init", "--quiet", "--initial-branch=main", name)
            for subject in subjects:
                (root / name / "number").write_text(subject)
                git(root / name, "add", "number")
                git(root / name, "commit", "--quiet", "-m", subject)
    return root


@pytest.fixture
def places(original, tmp_path, git, monkeypatch):
    """The folder with both repositories, and with others that are made of them."""
    without_hook(monkeypatch)
    for name in ("ours", "other"):
        shutil.copytree(original / name, tmp_path / name)
        git(tmp_path / name, "update-index", "--refresh")
    return tmp_path


def programs(folder, **scripts):
    """A folder for PATH with what scripts use, and these scripts."""
    folder.mkdir()
    for name in ("sh", "ls", "tr", "mkdir", "git"):
        if name not in scripts:
            (folder / name).symlink_to(shutil.which(name))
    for name, text in scripts.items():
        if text:
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
    return str(folder)


def hook(at):
    """As in a hook of another repository, with the index that `git commit -a` writes."""
    index = at.path / "ours" / ".git" / "index.lock"
    shutil.copy(at.path / "other" / ".git" / "index", index)
    other = at.path / "other"
    variables = {"DIR": other / ".git", "WORK_TREE": other, "INDEX_FILE": index, "PREFIX": ""}
    return {f"GIT_{name}": str(value) for name, value in variables.items()}


def linked_worktree(at):
    at.git(at.folder, "worktree", "add", "--quiet", "--detach", at.path / "linked")
    at.folder = at.path / "linked"


def bare(at):
    """As in a hook post-receive."""
    at.git(at.path, "clone", "--quiet", "--bare", "ours", "bare.git")
    at.git(at.path / "bare.git", "remote", "remove", "origin")
    at.folder, at.name = at.path / "bare.git", "bare.git"
    at.unknown = "this operation must be run in a work tree"
    return {"GIT_DIR": "."}


def shallow(at):
    at.git(at.path, "clone", "--quiet", "--depth=1", f"file://{at.folder}", "shallow")
    at.folder = at.path / "shallow"
    at.refused = "a shallow clone, which git -C "


def foreign_owner(at):
    at.unknown = at.refused = DUBIOUS
    return {"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"}


def no_git(at):
    at.unknown = at.refused = NO_GIT
    return {"PATH": programs(at.path / "programs", git="")}


def slow_git(at):
    """Three seconds for the state of the working directory."""
    text = 'case "$*" in *-C*) ;; *status*) sleep 3 ;; esac\nexec {} "$@"\n'
    script = "#!/bin/sh\n" + text.format(shutil.which("git"))
    return {"PATH": f"{programs(at.path / 'programs', git=script)}:{os.environ['PATH']}"}


def submodule(at):
    outer = at.path / "outer"
    at.git(at.path, "init", "--quiet", "outer")
    allowed = ("-c", "protocol.file.allow=always")
    at.git(outer, *allowed, "submodule", "--quiet", "add", at.folder, "inner")
    at.folder = outer / "inner"


def without_commit(at):
    at.git(at.path, "init", "--quiet", "empty")
    at.folder = at.path / "empty"
    at.unknown, at.refused = "nothing is committed yet", "there is no branch, tag or commit HEAD~1"


@pytest.fixture
def at(request, places, git, monkeypatch):
    """The situation: its folder, which is the working directory, and what is to be found there.

    `unknown` is why the commit of that folder is unknown, `refused` why commits cannot be checked
    out; both are "" elsewhere.
    """
    ours = places / "ours"
    at = SimpleNamespace(path=places, git=git, folder=ours, name="ours", unknown="", refused="")
    at.commits = git(ours, "rev-list", "--reverse", "main").split()
    variables = request.param(at) or {}
    indices = {path: path.read_bytes() for path in places.glob("**/index*")}
    assert indices
    monkeypatch.chdir(at.folder)
    with monkeypatch.context() as patched:
        for name, value in variables.items():
            patched.setenv(name, value)
        yield at
    assert {path: path.read_bytes() for path in places.glob("**/index*")} == indices
    # Of worktrees only that of the situation is left.
    assert git(ours, "worktree", "list").count("\n") == (at.folder.name == "linked")
    assert git(places / "other", "worktree", "list").count("\n") == 0
    assert git(places / "other", "log", "--format=%s") == "x"


def where(*everyday, slow=()):
    """A test in these situations; the everyday suite leaves out the slow ones."""
    cases = slow_if(slow, [*everyday, *slow])
    return pytest.mark.parametrize("at", cases, indirect=True, ids=lambda f: f.__name__)


def lines_about(text, *words):
    return [line for line in text.splitlines() if any(word in line for word in words)]


@pytest.mark.usefixtures("quick_start")
@where(
    *(hook, bare, foreign_owner),
    slow=(linked_worktree, shallow, no_git, submodule, without_commit, slow_git),
)
def test_run(at, call):
    err = call("run", *SHORT, f"--result_json={at.path}/run.json").err
    said = lines_about(err, "the commit of the measured code is unknown: ")
    subject = json.loads((at.path / "run.json").read_text())["subject"]
    if at.unknown:
        assert (subject["revision"], subject["repository"]) == (None, None)
        assert subject["unknown"].startswith(at.unknown)
        assert len(said) == 1
        assert at.unknown in said[0]
    else:
        assert not said
        named = at.git(at.folder, "config", "--default=", "--get", "remote.origin.url") or "ours"
        assert (subject["repository"], subject["revision"], subject["dirty"]) == (
            Path(named).name,
            at.commits[-1],
            False,
        )


@pytest.fixture
def words(fake_python, quick_processes, quick_answers, at):
    """A command line whose sides are two commits."""
    sides = [f"--{side}_python={fake_python}" for side in "ab"]
    return [*sides, "--a_checkout=HEAD~1", "--b_checkout=HEAD", f"--results={at.path}/results"]


@where(hook, shallow)
def test_ab(at, words, call):
    flags = ("--pairs=1", "--burn_in=0", "--pairing=alternate", "--explain=never")
    err = call("ab", *words, *flags, code=2 if at.refused else 3).err
    if at.refused:
        assert err.count("\n") == 1
        where = "is neither a folder nor a revision of the repository you are in"
        assert err.startswith(f"cnnbench: error: --a_checkout=HEAD~1: {where}: {at.refused}")
        assert not (at.path / "results").exists()
        return
    for side, commit in zip("ab", at.commits[-2:], strict=True):
        (path,) = (at.path / "results" / side).iterdir()
        subject = json.loads(path.read_text())["subject"]
        assert (subject["revision"], subject["dirty"], subject["side"]) == (commit, False, side)
        assert subject["repository"] != "other"


@where(bare, no_git)
def test_explain(at, words, call):
    """The stand-in has no profiles, which is found in the worktrees."""
    err = call("explain", *words, code=2 if at.refused else 4).err
    assert (at.refused or "is of a version without --profile_json") in err
    assert err.count("\n") == 1


@where(linked_worktree, without_commit)
def test_bisect(at, fake_python, quick_processes, quick_answers, call):
    quick = ("--pairs=6", "--burn_in=0", "--pairing=alternate")
    where = (f"--python={fake_python}", f"--results={at.path}/results")
    refused = at.refused or at.unknown  # it needs a working tree
    printed = call(
        "bisect", "HEAD~1", "HEAD", *where, *quick, "--", *TINY, code=2 if refused else 3
    )
    if refused:
        assert printed.err.count("\n") == 1
        assert refused in printed.err
    else:
        subjects = [
            json.loads(p.read_text())["subject"] for p in at.path.glob("results/**/*-?.json")
        ]
        assert {one["revision"] for one in subjects} == {*at.commits[-2:]}


@where(shallow, foreign_owner, submodule)
def test_history(at, lenet_runs, saved, call):
    """The records are of the commits, measured backwards."""
    run = lenet_runs()
    labels = [{"result_label": f"commit={commit}"} for commit in at.commits[::-1]]
    saved(at.path / "records", [run(100.0, flags=flags) for flags in labels])
    command = ("history", at.path / "records", f"--git={at.folder}", "--format=json")
    if at.unknown in (DUBIOUS, NO_GIT):
        err = call(*command, code=2).err
        assert err.startswith(f"cnnbench: error: --git={at.folder}: {at.unknown}")
        return
    out, err = call(*command)
    (series,) = json.loads(out)["series"]
    named = [point["name"] for point in series["points"]]
    if at.folder.name != "shallow":
        assert (named, err) == (at.commits, "")
        return
    assert f"--git={at.folder} lacks 2 of 3 measured commits: " in err
    assert "fetch --unshallow" in err
    call(*command, "--fail_on=step", code=3)


@where(hook, foreign_owner)
def test_gate(at, call, monkeypatch):
    given = {}
    run = "cnnbench.cli.commands.ab_session.run_experiment"
    monkeypatch.setattr(run, lambda values, *_: given.update(values) or 0)
    done = call("gate", "HEAD~1", "HEAD", f"--results={at.path}/gate", code=2 if at.refused else 0)
    if at.refused:
        (said,) = done.err.splitlines()
        assert said.startswith("cnnbench: error: HEAD~1 HEAD: ")
        assert at.refused in said
    else:
        assert given["a_checkout"] == at.commits[-2]


@where(no_git)
def test_compare(at, lenet_runs, saved, call):
    """Records that name their code are compared without git, and of others it is said."""
    run = lenet_runs()
    subjects = {name: Subject(repository="ours", revision=name * 40) for name in "ab"}
    sides = [
        saved(at.path / name, [run(100.0, subject=subject) for _ in range(4)])
        for name, subject in subjects.items()
    ]
    out, err = call("compare", *sides, code=None)
    assert ("= same" in out, err) == (True, "")
    saved(sides[1], [run(100.0, subject=Subject(unknown=DUBIOUS)) for _ in range(4)])
    out, err = call("compare", *sides, code=3)
    assert "revision is bbbbbbbbbbbb or unknown within NEW" in out
    said = "the commit of 4 measurements is unknown, and may be several"
    end = "(--quiet_conditions=commit silences this)"
    assert err == f"cnnbench: warning: {said}: {DUBIOUS} {end}\n"
