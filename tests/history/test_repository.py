"""Commits in the order of a repository."""

import subprocess

import pytest

from cnnbench.errors import FlagError
from cnnbench.history.repository import order_of_commits


@pytest.fixture
def repository(tmp_path):
    def git(*arguments):
        identity = ("-c", "user.name=x", "-c", "user.email=x@y")
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    commits = []
    for index in range(3):
        git("commit", "-q", "--allow-empty", "-m", f"commit {index}")
        commits.append(git("rev-parse", "HEAD"))
    return tmp_path, commits


def test_ancestors_come_first_and_short_names_count(repository):
    folder, commits = repository
    order = order_of_commits(str(folder))
    assert [order[commit] for commit in commits] == [0, 1, 2]
    assert [order[commit[:9]] for commit in commits] == [0, 1, 2]
    assert commits[0][:5] not in order


def test_what_is_no_repository_is_wrong_use(tmp_path):
    with pytest.raises(FlagError, match="--git="):
        order_of_commits(str(tmp_path / "gone"))
