"""Tests cnnbench/cli/commands/gate.py: the files of --init, run by stand-ins of the CI systems."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from github_server import MARK, GitHub
from gitlab_server import GitLab

ENDED = ("success", "failure", "cancelled")
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


@pytest.fixture
def github(repository, tmp_path, git, written):
    """A repository whose main has the speed 100, and files of --init."""
    if shutil.which("jq") is None:
        pytest.skip("needs jq")
    git(tmp_path, "clone", "--quiet", "--bare", "repository", "project.git")
    return GitHub(tmp_path / "project.git", tmp_path / "github", written("github"), git)


@pytest.fixture
def pull(github, repository, commit, git):
    """Opens pull request 5, whose speed is 80, while main goes on. Returns its base, its head and
    its run."""
    start = git(repository, "rev-parse", "main")
    slow = commit(start, 80)
    push(git, repository, github.project, main=commit(start), slow=slow)
    github.open(5, slow)
    return start, slow, github.runs[-1]


def test_github_measures_each_push_and_changes_its_comment(github, pull, repository, commit, git):
    start, slow, run = pull
    github.add_comment(5, "eve", f"{MARK}mine")
    assert github.required_check(slow) == "running"
    (answer,) = github.finish(run).answers
    assert (answer.code, answer.sides, answer.words[-3:]) == (1, [start, slow], ["--", *OWN])
    assert github.required_check(slow) == "failure"
    assert github.comments(5) == [f"{MARK}mine", f"{MARK}### slower {slow}\n"]
    fast = commit(slow, 100)
    push(git, repository, github.project, fast=fast)
    github.push(5, fast)
    github.finish(github.runs[-1])
    assert (github.required_check(slow), github.required_check(fast)) == ("failure", "success")
    assert github.comments(5) == [f"{MARK}mine", f"{MARK}### same {fast}\n"]
    github.broken = True
    for head in (slow, fast):
        github.push(5, head)
        github.finish(github.runs[-1])
        ended = f"The benchmark of {head} ended without a result: https://run\n"
        assert github.comments(5)[1:] == [f"{MARK}{ended}"]
        assert github.required_check(head) == "failure"


def test_github_ends_a_measurement_for_a_push(github, pull, repository, commit, git):
    _, slow, run = pull
    other = commit(slow)
    push(git, repository, github.project, other=other)
    github.push(5, other)
    assert (run.state, run.answers, github.comments(5)) == ("cancelled", [], [])
    assert github.finish(github.runs[-1]).answers[0].sides[1] == other
    github.reopen(5)
    again = github.runs[-1]
    github.reopen(5)
    assert (again.state, github.runs[-1].state) == ("running", "waiting")
    github.finish(again)
    assert github.finish(github.runs[-1]).state == "failure"
    before = github.comments(5)
    github.set_label(5, "accept-slower")
    github.finish(github.runs[-1], "cancelled")  # The label was removed just before the end.
    assert (len(github.runs[-1].artifacts), github.comments(5)) == (1, before)


@pytest.mark.parametrize("measured", [False, True])
def test_github_leaves_a_measurement_alone_if_another_label_is_set(github, pull, measured):
    _, slow, run = pull
    if measured:
        github.finish(run)
    before = run.state, github.required_check(slow), github.comments(5)
    for there in (True, False):
        github.set_label(5, "urgent", there)
        other = github.runs[-1]
        assert (run.state, github.required_check(slow), github.comments(5)) == before
        assert github.finish(other).state == "success"
        assert (other.answers, other.check) == ([], "other label")
        assert (run.state, github.required_check(slow), github.comments(5)) == before
    if not measured:
        github.finish(run)
    assert github.required_check(slow) == "failure"
    assert github.comments(5) == [f"{MARK}### slower {slow}\n"]


def test_github_measures_anew_if_the_accepting_label_is_set_or_removed(github, pull):
    _, slow, run = pull
    github.set_label(5, "Accept-Slower")
    assert run.state == "cancelled"
    assert github.finish(github.runs[-1]).answers[0].verdict == "accepted"
    assert github.required_check(slow) == "success"
    github.set_label(5, "Accept-Slower", there=False)
    assert github.required_check(slow) == "running"
    assert github.comments(5) == [f"{MARK}### accepted {slow}\n"]
    assert github.finish(github.runs[-1]).answers[0].verdict == "slower"
    assert github.required_check(slow) == "failure"
    assert github.comments(5) == [f"{MARK}### slower {slow}\n"]


def test_github_reads_the_labels_anew_if_a_run_is_repeated(github, pull):
    *_, run = pull
    github.finish(run)
    github.set_label(5, "accept-slower")
    labelled = github.finish(github.runs[-1])
    # Both events contain the labels of their time.
    assert [github.repeat(one).state for one in (run, labelled)] == ["success", "success"]
    github.set_label(5, "accept-slower", there=False)
    github.finish(github.runs[-1])
    assert [github.repeat(one).state for one in (run, labelled)] == ["failure", "failure"]
    assert len(run.answers) == 3
    github.broken = True
    github.repeat(run)  # The artifact of the earlier attempt is not taken for this one's.
    assert "ended without a result" in github.comments(5)[0]


def test_github_accepts_slowdowns_in_a_merge_queue(github, pull, repository, commit, git):
    """Pull request 6 is not slower, and stands behind pull request 5 in the queue."""
    start, _, run = pull
    github.finish(run)
    other = commit(start)
    push(git, repository, github.project, other=other)
    github.open(6, other)
    github.finish(github.runs[-1])
    main = git(repository, "rev-parse", "main")
    queued = github.enqueue(5)
    assert github.required_check(queued.commit) == "running"
    assert github.finish(queued).answers[0].sides == [main, queued.commit]
    assert github.required_check(queued.commit) == "failure"
    assert len(github.comments(5)) == 1  # The queue writes no comment.
    github.set_label(5, "accept-slower")
    first = github.finish(github.enqueue(5))
    assert (first.state, first.answers[0].verdict) == ("success", "accepted")
    second = github.finish(github.enqueue(6, onto=first.commit))
    assert second.answers[0].sides == [first.commit, second.commit]
    assert (second.state, second.answers[0].verdict) == ("success", "same")
    # The name of a branch may look like the end of the name of a queue's branch.
    git(github.project, "branch", "x/pr-6-a", "main")
    assert github.finish(github.enqueue(5, onto="x/pr-6-a", base="x/pr-6-a")).state == "success"
    assert github.repeat(queued).state == "success"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(9))
def test_a_green_gate_of_github_has_measured_in_any_order_of_events(
    github, repository, commit, git, seed
):
    """Also: only pushes and the accepting label end a measurement."""
    rng = random.Random(seed)
    start = git(repository, "rev-parse", "main")
    heads = [commit(start, speed) for speed in (80, 101, 70)]
    push(git, repository, github.project, **{f"b{n}": head for n, head in enumerate(heads)})
    github.open(5, heads[0])
    head, accepted = heads[0], {}
    for _ in range(14):
        running = [run for run in github.running if run.check == "gate"]
        labels = github.labels(5)
        action = rng.choice(["push", "accept", "urgent", "reopen", "finish", "finish", "repeat"])
        if action == "push":
            head = rng.choice(heads)
            github.push(5, head)
        elif action == "accept":
            github.set_label(5, "accept-slower", there="accept-slower" not in labels)
        elif action == "urgent":
            github.set_label(5, "urgent", there="urgent" not in labels)
        elif action == "reopen":
            github.reopen(5)
        elif action == "finish" and github.running:
            run = github.finish(rng.choice(github.running))
            accepted[run.number] = "accept-slower" in labels
        elif action == "repeat" and (ended := [r for r in github.runs if r.state in ENDED]):
            run = github.repeat(rng.choice(ended))
            accepted[run.number] = "accept-slower" in labels
        if action in ("urgent", "reopen", "finish"):
            assert not any(run.state == "cancelled" for run in running), action
        for run in (run for run in github.runs if run.state == "success"):
            fast = run.commit == heads[1]
            assert run.check != "gate" or fast or accepted[run.number]
            assert bool(run.answers) == (run.check == "gate")
        if github.required_check(head) == "success":
            (*_, last) = (r for r in github.runs if (r.check, r.commit) == ("gate", head))
            assert last.answers
