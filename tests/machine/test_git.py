"""Programs that a repository's configuration names, which reading it must not run."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess

import pytest

from cnnbench.campaigns.ab.checkout import worktree
from cnnbench.campaigns.bisect.commits import History, ends_of, repository_of
from cnnbench.judge.history.series import order_of_commits
from cnnbench.machine.git import GitError, git, state
from cnnbench.machine.repository import of_folder, of_work

WHO = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always")


def plain_git(folder, *arguments):
    """Git as people run it."""
    command = ["git", "-C", str(folder), *WHO, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    return done.stdout.strip()


class Traps:
    """Programs that leave a file behind when they are run."""

    def __init__(self, folder):
        self._folder = folder
        folder.mkdir()

    def program(self, name, then="", path=None):
        """The path of a program that leaves a file called `name`."""
        path = path or self._folder / f"{name}.sh"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\ntouch '{self._folder}/{name}.ran'\n{then}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    def sprung(self):
        """The names of those that have run since the last call."""
        found = sorted(self._folder.glob("*.ran"))
        for one in found:
            one.unlink()
        return {one.stem for one in found}


@pytest.fixture
def traps(tmp_path):
    return Traps(tmp_path / "traps")


@pytest.fixture
def trapped(tmp_path, traps):
    """A repository of two commits whose configuration names programs for everything.

    The contents of a file with a filter, and of a submodule, have to be compared.
    """
    inner, outer = tmp_path / "inner", tmp_path / "outer"
    for folder in (inner, outer):
        plain_git(tmp_path, "init", "--quiet", str(folder))
        (folder / "net.py").write_text("a = 1\n")
        plain_git(folder, "add", ".")
        plain_git(folder, "commit", "--quiet", "-m", "first")
    plain_git(outer, "submodule", "--quiet", "add", str(inner), "inner")
    (outer / ".gitattributes").write_text("*.bin filter=trap\n")
    (outer / "weights.bin").write_text("w")
    plain_git(outer, "add", ".")
    signature = "echo -----BEGIN PGP SIGNATURE-----; echo; echo -----END PGP SIGNATURE-----"
    # It reads what is signed: git fails where it cannot write all of that.
    text = f"cat > /dev/null; echo '[GNUPG:] SIG_CREATED ' >&2; {signature}"
    signer = traps.program("signer", text)
    plain_git(outer, "-c", f"gpg.program={signer}", "commit", "--quiet", "-S", "-m", "second")
    for folder, name in ((outer, "monitor"), (outer / "inner", "inner_monitor")):
        plain_git(folder, "config", "core.fsmonitor", traps.program(name))
    plain_git(outer, "config", "gpg.program", signer)
    plain_git(outer, "config", "log.showSignature", "true")
    for kind in ("clean", "smudge"):
        plain_git(outer, "config", f"filter.trap.{kind}", traps.program(kind, "cat"))
    for hook in ("post-checkout", "post-index-change", "reference-transaction"):
        traps.program("hook", path=outer / ".git/hooks" / hook)
    for file in ("weights.bin", "inner/net.py"):
        os.utime(outer / file, (1, 1))
    traps.sprung()
    return outer


def test_the_traps_work(trapped, traps):
    plain_git(trapped, "status", "--porcelain")
    with contextlib.suppress(subprocess.CalledProcessError):  # no signature worth the name
        plain_git(trapped, "show", "--no-patch")
    assert traps.sprung() == {"monitor", "inner_monitor", "clean", "signer", "hook"}


def test_reading_runs_nothing(trapped, traps):
    head, first = (plain_git(trapped, "rev-parse", name) for name in ("HEAD", "HEAD~1"))
    traps.sprung()
    found = of_folder(trapped)
    assert (found.repository, found.revision, found.dirty) == ("outer", head, False)
    assert of_work({"model_plugin": str(trapped / "net.py")}) == found
    assert list(order_of_commits(str(trapped)))[:2] == [first, head]
    assert ends_of("HEAD~1", "HEAD", repository_of(str(trapped))) == (first, head)
    history = History(trapped)
    assert history.suspects([first], head) == [head]
    assert history.ordered([head], first, head) == (head,)
    assert history.describe(head).subject == "second"
    assert history.parent(head) == first
    assert traps.sprung() == set()


def test_a_checkout_runs_no_hook(trapped, traps):
    with worktree("HEAD", trapped) as folder:
        assert (folder / "weights.bin").read_text() == "w"
    # The filter is part of the contents.
    assert traps.sprung() == {"smudge"}


def test_files_with_filters_and_contents_of_submodules_do_not_count(trapped):
    for file in ("weights.bin", "inner/net.py"):
        (trapped / file).write_text("changed")
    assert state(trapped / "inner")[1] is True
    assert state(trapped)[1] is False
    (trapped / "net.py").write_text("changed")
    assert state(trapped)[1] is True


def test_nothing_is_fetched(tmp_path, traps):
    source, partial = tmp_path / "source", tmp_path / "partial"
    plain_git(tmp_path, "init", "--quiet", str(source))
    plain_git(source, "commit", "--quiet", "--allow-empty", "-m", "first")
    plain_git(source, "config", "uploadpack.allowFilter", "true")
    plain_git(tmp_path, "clone", "--quiet", "--filter=blob:none", f"file://{source}", str(partial))
    plain_git(partial, "config", "remote.origin.uploadpack", traps.program("server"))
    missing = "1" * 40
    with pytest.raises(subprocess.CalledProcessError):
        plain_git(partial, "show", missing)
    assert traps.sprung() == {"server"}
    with pytest.raises(GitError):
        git("show", "--no-patch", missing, folder=partial)
    assert traps.sprung() == set()
