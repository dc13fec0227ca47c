"""Order of measured commits in a repository, and what became of them.

Tests cnnbench/machine/repository.py.
"""

from __future__ import annotations

import shutil

import pytest

from cnnbench.machine.repository import CommitGraph, GitError, sort_by_optional_place


@pytest.fixture(scope="module")
def repository(nets):
    """Folder, its commits by name, and these as the program reads them."""
    folder, made = nets
    return folder, made, CommitGraph(folder)


def test_ancestors_come_first_and_short_names_count(repository):
    _, made, commits = repository
    line = [made[name] for name in ("m1", "m2", "m4", "merge", "m5", "n1", "n2", "squash", "m8")]
    places = [commits.places[commit] for commit in line]
    assert places == sorted(places)
    assert [commits.places[commit[:9]] for commit in line] == places
    assert commits.places["v1"] == commits.places[made["m8"]]
    assert made["m1"][:5] not in commits.places
    assert not {made[name] for name in ("r1", "r2", "s1", "s2")} & commits.places.keys()


@pytest.mark.parametrize(
    ("commit", "other", "contains"),
    [
        *(("merge", "b2", True), ("merge", "m4", True), ("b2", "m3", True), ("m4", "m4", True)),
        *(("b2", "m4", False), ("m4", "b1", False), ("m1", "m2", False), ("m8", "o1", False)),
        *(("m8", "s1", None), ("r1", "m1", None)),
    ],
)
def test_a_commit_contains_its_ancestors(repository, commit, other, contains):
    _, made, commits = repository
    assert commits.is_same_or_descendant(made[commit], made[other][:9]) is contains


def test_parents_of_commits(repository):
    _, made, commits = repository
    assert commits.parents(made["m2"]) == [made["m1"]]
    assert commits.parents(made["merge"]) == [made["m4"], made["b2"]]
    assert commits.parents(made["merge"][:9]) == [made["m4"], made["b2"]]
    assert commits.parents(made["m1"]) == commits.parents(made["s1"]) == commits.parents("no") == []


def test_what_replaced_a_commit(repository):
    _, made, commits = repository
    asked = [made[name] for name in ("r1", "s2", "s1", "m1")]
    replaced = {made["r1"]: (made["n1"], "a rebase"), made["s2"]: (made["squash"], "a squash")}
    assert commits.replacing_commits([*asked, "v1"]) == replaced
    assert commits.replacing_commits([made["m1"], "v1"]) == {}


def test_what_became_of_measured_commits_is_said(repository):
    _, made, commits = repository
    short = {name: commit[:12] for name, commit in made.items()}
    assert commits.commit_remarks([*made.values(), "v1", "e" * 40]) == [
        f"2 measured commits were replaced, as by a rebase: {short['r1']} is now {short['n1']}, "
        f"{short['r2']} is now {short['n2']}.",
        f"1 measured commit was replaced, as by a squash: {short['s2']} is now {short['squash']}.",
        f"2 measured commits are on no branch or tag of the repository: {short['s1']}, {'e' * 12}.",
        "Without a place in the repository, 5 commits follow the one that was measured before.",
        f"Names of branches and tags are placed where they point now: v1 ({short['m8']}). "
        "If one was moved since, another commit was measured.",
        f"{short['merge']} merged another branch, with {short['b1']}, {short['b2']}.",
        f"HEAD does not contain {short['o1']}.",
        f"{short['revert']} reverts {short['m6']}.",
    ]


def test_files_with_the_names_of_commits_change_nothing(repository, tmp_path):
    folder, made, commits = repository
    copy = tmp_path / "nets"
    shutil.copytree(folder, copy)
    for name in ("HEAD", *made.values()):
        (copy / name).touch()
    names = [*made.values(), "v1", "e" * 40]
    told = CommitGraph(copy).commit_remarks(names)
    assert told == commits.commit_remarks(names)


def test_nothing_is_said_of_commits_that_follow_each_other(repository):
    _, made, commits = repository
    assert commits.commit_remarks([made[name] for name in ("m1", "m2", "m4", "merge", "m5")]) == []
    assert commits.commit_remarks([]) == []


def test_a_repository_without_a_checked_out_commit_has_an_order(repository, tmp_path, git):
    folder, made, _ = repository
    git(tmp_path, "clone", "-q", "--bare", str(folder), "bare")
    git(tmp_path / "bare", "symbolic-ref", "HEAD", "refs/heads/gone")
    commits = CommitGraph(tmp_path / "bare")
    assert commits.is_same_or_descendant(made["m8"], made["m1"])
    assert commits.commit_remarks([made["b1"]]) == []


def test_a_folder_without_a_repository_is_an_error(tmp_path):
    with pytest.raises(GitError):
        CommitGraph(tmp_path / "gone")


def test_items_without_a_place_follow_the_one_before_them():
    places = {"a": 2, "b": 1, "c": 0}
    assert sort_by_optional_place(["a", "x", "b", "c", "y"], places.get) == [
        "c",
        "y",
        "b",
        "a",
        "x",
    ]
