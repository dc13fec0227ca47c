"""The repository that a process works in."""

from __future__ import annotations

import subprocess

import pytest

from cnnbench.machine.repository import address, of_folder, of_work
from cnnbench.records.subject import Subject


def git(folder, *arguments):
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    command = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def nets(tmp_path):
    folder = tmp_path / "nets"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    (folder / "net.py").write_text("a = 1\n")
    git(folder, "add", "net.py")
    git(folder, "commit", "--quiet", "-m", "first")
    return folder


def test_revision_and_changes_of_tracked_files(nets):
    head = git(nets, "rev-parse", "HEAD")
    (nets / "results").mkdir()
    (nets / "results" / "untracked.json").write_text("{}")
    assert of_folder(nets / "results") == Subject(repository="nets", revision=head, dirty=False)
    (nets / "net.py").write_text("a = 2\n")
    assert of_folder(nets) == Subject(repository="nets", revision=head, dirty=True)


def test_a_worktree_is_of_the_same_repository(nets, tmp_path):
    head = git(nets, "rev-parse", "HEAD")
    git(nets, "worktree", "add", "--quiet", "--detach", str(tmp_path / "elsewhere"))
    found = of_folder(tmp_path / "elsewhere")
    assert found == Subject(repository="nets", revision=head, dirty=False)


def test_the_remote_names_it_without_its_password(nets):
    git(nets, "remote", "add", "origin", "https://me:secret@Example.com:8443/team/nets.git")
    assert of_folder(nets).repository == "example.com/team/nets"


def test_nothing_is_known_outside_and_before_the_first_commit(tmp_path):
    assert of_folder(tmp_path) == Subject()
    git(tmp_path, "init", "--quiet")
    assert of_folder(tmp_path) == Subject()


def test_the_work_is_that_of_the_working_directory_or_of_a_plugin(nets, tmp_path, monkeypatch):
    head = git(nets, "rev-parse", "HEAD")
    found = Subject(repository="nets", revision=head, dirty=False)
    monkeypatch.chdir(tmp_path)
    assert of_work({"model_plugin": None, "model": "lenet"}) == Subject()
    assert of_work({"model_plugin": "nets/net.py"}) == found
    assert of_work({"model_plugin": "", "dataset_plugin": str(nets / "net.py")}) == found
    assert of_work({"dataset_plugin": None, "variable_mgr_plugin": "nets/net.py"}) == found
    # A link to it counts as the file itself.
    (tmp_path / "link.py").symlink_to(nets / "net.py")
    assert of_work({"model_plugin": "link.py"}) == found
    monkeypatch.chdir(nets)
    assert of_work({}) == found
    # A plug-in of no repository is measured in the working directory's.
    (tmp_path / "own.py").write_text("")
    assert of_work({"model_plugin": "../own.py"}) == found


def test_a_plugin_that_is_not_tracked_differs_from_the_commit(nets):
    head = git(nets, "rev-parse", "HEAD")
    (nets / "new net.py").write_text("")
    found = of_work({"model_plugin": str(nets / "new net.py")})
    assert found == Subject(repository="nets", revision=head, dirty=True)


@pytest.mark.parametrize(
    "url",
    [
        "git@github.com:owner/nets.git",
        "ssh://git@github.com/owner/nets.git",
        "https://github.com/owner/nets/",
        "https://token@github.com/owner/nets",
    ],
)
def test_all_ways_to_a_repository_are_one(url):
    assert address(url) == "github.com/owner/nets"


@pytest.mark.parametrize("url", ["/srv/git/nets.git", "../nets", "file:///srv/git/nets.git"])
def test_a_path_is_its_last_part(url):
    assert address(url) == "nets"
