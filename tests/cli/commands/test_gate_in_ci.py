"""Tests cnnbench/cli/commands/gate.py: the files of --init, run by stand-ins of the CI systems."""

from __future__ import annotations

from pathlib import Path

import pytest
from gitlab_server import GitLab

OWN = ("--plugin=bench/nets.py", "--model=ours")


@pytest.fixture
def repository(tmp_path, git, monkeypatch):
    """A repository with the speed 100, and the function commit(PARENT, SPEED), which returns the
    hash of a commit on top of PARENT. A speed is in the file `speed`; without a speed, the commit
    changes another file."""
    folder = tmp_path / "repository"
    git(tmp_path, "init", "--quiet", "--initial-branch=main", "repository")
    monkeypatch.chdir(folder)
    (folder / "bench").mkdir()
    (folder / "bench/nets.py").write_text("# the networks\n")
    (folder / "speed").write_text("100\n" + "\n" * 20)
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "start")
    return folder


@pytest.fixture
def commit(repository, git):
    def make(parent, speed=None):
        git(repository, "switch", "--quiet", "--detach", parent)
        if speed is None:
            count = len(list(repository.glob("note*")))
            (repository / f"note-{parent[:7]}-{count}").write_text("more\n")
        else:
            (repository / "speed").write_text(f"{speed}\n" + "\n" * 20)
        git(repository, "add", ".")
        git(repository, "commit", "--quiet", "-m", f"speed {speed}")
        made = git(repository, "rev-parse", "HEAD")
        git(repository, "switch", "--quiet", "main")
        return made

    return make


@pytest.fixture
def written(call, repository, git):
    """The files that --init=SYSTEM writes, by their names."""

    def write(system):
        files = call("gate", f"--init={system}", "--", *OWN).out.splitlines()
        return {Path(file).name: Path(file).read_text() for file in files}

    return write


@pytest.fixture
def gitlab(repository, tmp_path, git):
    git(tmp_path, "clone", "--quiet", "--bare", "repository", "project.git")
    return GitLab(tmp_path / "project.git", tmp_path / "gitlab", git)


def push(git, repository, server, **branches):
    """Sets branches of the repository, and pushes all commits to the repository of a server."""
    for name, commit in branches.items():
        git(repository, "update-ref", f"refs/heads/{name}", commit)
    git(repository, "push", "--quiet", "--force", str(server), "refs/heads/*:refs/heads/*")


@pytest.fixture
def gone_on(repository, gitlab, commit, git):
    """main has become slower since merge request 1, which is not slower, left it. Returns the
    commit that it left, and its own."""
    start = git(repository, "rev-parse", "main")
    change = commit(start)
    push(git, repository, gitlab.project, change=change, main=commit(start, 50))
    gitlab.request(1, change)
    return start, change


def test_gitlab_does_not_blame_a_merge_request_for_what_main_did(gitlab, gone_on, written):
    start, change = gone_on
    file = written("gitlab")[".gitlab-ci.yml"]
    answers = [gitlab.branch_pipeline(1, file)]
    answers += [gitlab.merged_results(1, file, how=how)[0] for how in ("merge", "squash")]
    for answer in answers:
        assert (answer.code, answer.sides) == (0, [start, change])
        assert answer.words[-3:] == ["--", *OWN]


def test_gitlab_finds_the_slowdown_of_a_merge_request_and_its_label(
    gitlab, gone_on, written, repository, commit, git
):
    start, change = gone_on
    slow = commit(change, 80)
    push(git, repository, gitlab.project, change=slow)
    gitlab.request(1, slow)
    file = written("gitlab")[".gitlab-ci.yml"]
    # main changed the same file, so the results cannot be merged.
    for labels, code in (([], 1), (["accept-slower-not"], 1), (["urgent", "accept-slower"], 0)):
        gitlab.labels[1] = labels
        answer = gitlab.branch_pipeline(1, file)
        assert (answer.code, answer.sides) == (code, [start, slow]), labels


@pytest.mark.parametrize("how", ["merge", "squash"])
def test_gitlab_measures_each_merge_request_of_a_train_alone(
    gitlab, written, repository, commit, git, how
):
    """Merge request 1 is slower, which its label accepts. Merge request 2 waits behind it, and
    merge request 3, which grew out of 1, behind both."""
    start = git(repository, "rev-parse", "main")
    slow, other = commit(start, 80), commit(start)
    stacked = commit(slow)
    # The source branches are in forks, so the project has only the refs of the merge requests.
    for number, head in ((1, slow), (2, other), (3, stacked)):
        git(repository, "push", "--quiet", str(gitlab.project), f"{head}:refs/keep/{number}")
        gitlab.request(number, head)
    file = written("gitlab")[".gitlab-ci.yml"]
    first, train = gitlab.merged_results(1, file, how=how)
    assert (first.code, first.sides) == (1, [start, slow])
    gitlab.labels[1] = ["accept-slower"]
    assert gitlab.merged_results(1, file, how=how)[0].code == 0
    second, train = gitlab.merged_results(2, file, onto=train, how=how)
    assert (second.code, second.sides) == (0, [start, other])
    if how == "merge":  # A squashed commit does not say that it contains those of the branch.
        third, _ = gitlab.merged_results(3, file, onto=train)
        assert (third.code, third.sides) == (0, [slow, stacked])
