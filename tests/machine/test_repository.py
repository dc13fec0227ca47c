"""The repository that a process works in, and programs in its configuration that must not run."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat

import pytest

from cnnbench.campaigns.ab.worktree import worktree
from cnnbench.campaigns.bisect.history import GitHistory, find_repository_root, good_and_bad_hashes
from cnnbench.machine import repository
from cnnbench.machine.repository import (
    CommitGraph,
    GitError,
    environment_for_git,
    measured_code,
    read_repository_state,
    repository_address,
)
from cnnbench.machine.repository import git as read_only_git
from cnnbench.records.subject import Subject


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
        """The names of the programs that have run since the last call."""
        found = sorted(self._folder.glob("*.ran"))
        for one in found:
            one.unlink()
        return {one.stem for one in found}


@pytest.fixture
def traps(tmp_path):
    return Traps(tmp_path / "traps")


@pytest.fixture
def trapped(tmp_path, traps, git):
    """A repository of two commits whose configuration names programs for everything.

    The contents of a file with a filter, and of a submodule, have to be compared.
    """
    inner, outer = tmp_path / "inner", tmp_path / "outer"
    for folder in (inner, outer):
        git(tmp_path, "init", "--quiet", str(folder))
        (folder / "net.py").write_text("a = 1\n")
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", "-m", "first")
    submodule = ("-c", "protocol.file.allow=always", "submodule")
    git(outer, *submodule, "--quiet", "add", str(inner), "inner")
    (outer / ".gitattributes").write_text("*.bin filter=trap\n")
    (outer / "weights.bin").write_text("w")
    git(outer, "add", ".")
    signature = "echo -----BEGIN PGP SIGNATURE-----; echo; echo -----END PGP SIGNATURE-----"
    # It reads what is signed: git fails where it cannot write all of that.
    text = f"cat > /dev/null; echo '[GNUPG:] SIG_CREATED ' >&2; {signature}"
    signer = traps.program("signer", text)
    git(outer, "-c", f"gpg.program={signer}", "commit", "--quiet", "-S", "-m", "second")
    for folder, name in ((outer, "monitor"), (outer / "inner", "inner_monitor")):
        git(folder, "config", "core.fsmonitor", traps.program(name))
    git(outer, "config", "gpg.program", signer)
    git(outer, "config", "log.showSignature", "true")
    for kind in ("clean", "smudge"):
        git(outer, "config", f"filter.trap.{kind}", traps.program(kind, "cat"))
    for hook in ("post-checkout", "post-index-change", "reference-transaction"):
        traps.program("hook", path=outer / ".git/hooks" / hook)
    for file in ("weights.bin", "inner/net.py"):
        os.utime(outer / file, (1, 1))
    traps.sprung()
    return outer


def test_the_traps_work(trapped, traps, git):
    git(trapped, "status", "--porcelain")
    with contextlib.suppress(AssertionError):  # no signature worth the name
        git(trapped, "show", "--no-patch")
    assert traps.sprung() == {"monitor", "inner_monitor", "clean", "signer", "hook"}


def test_reading_runs_nothing(trapped, traps, git):
    head, first = (git(trapped, "rev-parse", name) for name in ("HEAD", "HEAD~1"))
    traps.sprung()
    found = read_repository_state(trapped)
    assert (found.repository, found.revision, found.dirty) == ("outer", head, False)
    assert measured_code({"plugin": str(trapped / "net.py")}) == found
    commits = CommitGraph(trapped)
    assert list(commits.places)[:2] == [first, head]
    assert len(commits.commit_remarks([head, "0" * 40])) == 2
    assert good_and_bad_hashes("HEAD~1", "HEAD", find_repository_root(str(trapped))) == (
        first,
        head,
    )
    history = GitHistory(trapped)
    assert history.suspects([first], head) == [head]
    assert history.order_by_ancestry([head], first, head) == (head,)
    assert history.format_commit(head) == "second"
    assert history.parent(head) == first
    assert traps.sprung() == set()


def test_a_checkout_runs_no_hook(trapped, traps):
    with worktree("HEAD", trapped) as folder:
        assert (folder / "weights.bin").read_text() == "w"
    # The filter is part of the contents.
    assert traps.sprung() == {"smudge"}


def test_files_with_filters_and_contents_of_submodules_do_not_count(trapped, traps):
    traps.sprung()
    for file in ("weights.bin", "inner/net.py"):
        (trapped / file).write_text("changed")
    assert read_repository_state(trapped / "inner").dirty is True
    assert read_repository_state(trapped).dirty is False
    (trapped / "net.py").write_text("changed")
    found = read_repository_state(trapped)
    assert (found.dirty, found.changes is None) == (True, False)
    assert traps.sprung() == set()  # also by the digest of the changes


def test_nothing_is_fetched(tmp_path, traps, git):
    source, partial = tmp_path / "source", tmp_path / "partial"
    git(tmp_path, "init", "--quiet", str(source))
    git(source, "commit", "--quiet", "--allow-empty", "-m", "first")
    git(source, "config", "uploadpack.allowFilter", "true")
    git(tmp_path, "clone", "--quiet", "--filter=blob:none", f"file://{source}", str(partial))
    git(partial, "config", "remote.origin.uploadpack", traps.program("server"))
    missing = "1" * 40
    with pytest.raises(AssertionError, match="fatal: "):
        git(partial, "show", missing)
    assert traps.sprung() == {"server"}
    with pytest.raises(GitError):
        read_only_git("show", "--no-patch", missing, folder=partial)
    assert traps.sprung() == set()


@pytest.fixture
def nets(tmp_path, git):
    folder = tmp_path / "nets"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    (folder / "net.py").write_text("a = 1\n")
    git(folder, "add", "net.py")
    git(folder, "commit", "--quiet", "-m", "first")
    return folder


def test_revision_and_changes_of_tracked_files(nets, git):
    head = git(nets, "rev-parse", "HEAD")
    (nets / "results").mkdir()
    (nets / "results" / "untracked.json").write_text("{}")
    assert read_repository_state(nets / "results") == Subject(
        repository="nets", revision=head, dirty=False
    )
    states = []
    for text in ("a = 2\n", "a = 3\n", "a = 2\n"):
        (nets / "net.py").write_text(text)
        found = read_repository_state(nets)
        assert found == Subject(repository="nets", revision=head, dirty=True, changes=found.changes)
        states.append(found.changes)
    git(nets, "add", "net.py")
    assert read_repository_state(nets).changes == states[0] == states[2] != states[1]
    (nets / "net.py").unlink()
    assert read_repository_state(nets).changes not in states


def test_a_worktree_is_of_the_same_repository(nets, tmp_path, git):
    head = git(nets, "rev-parse", "HEAD")
    git(nets, "worktree", "add", "--quiet", "--detach", str(tmp_path / "elsewhere"))
    found = read_repository_state(tmp_path / "elsewhere")
    assert found == Subject(repository="nets", revision=head, dirty=False)


def test_the_remote_names_it_without_its_password(nets, git):
    git(nets, "remote", "add", "origin", "https://me:secret@Example.com:8443/team/nets.git")
    assert read_repository_state(nets).repository == "example.com/team/nets"


def test_nothing_is_known_outside_and_before_the_first_commit(tmp_path, git):
    assert read_repository_state(tmp_path) == Subject()
    git(tmp_path, "init", "--quiet")
    assert read_repository_state(tmp_path) == Subject(unknown="nothing is committed yet")


def test_the_work_is_that_of_the_working_directory_or_of_a_plugin(nets, tmp_path, monkeypatch, git):
    head = git(nets, "rev-parse", "HEAD")
    found = Subject(repository="nets", revision=head, dirty=False)
    monkeypatch.chdir(tmp_path)
    assert measured_code({"plugin": None, "model": "lenet"}) == Subject()
    assert measured_code({"plugin": "nets/net.py"}) == found
    assert measured_code({"plugin": [str(nets / "net.py")]}) == found
    # A link to it counts as the file itself.
    (tmp_path / "link.py").symlink_to(nets / "net.py")
    assert measured_code({"plugin": "link.py"}) == found
    monkeypatch.chdir(nets)
    assert measured_code({}) == found
    # A plug-in of no repository is measured in the working directory's, and is a change.
    states = {found.changes}
    for text in ("a = 1", "a = 2"):
        (tmp_path / "own.py").write_text(text)
        for paths in (["../own.py"], ["../own.py", "net.py"]):
            other = measured_code({"plugin": paths})
            assert (other.repository, other.revision, other.dirty) == ("nets", head, True)
            states.add(other.changes)
    assert len(states) == 3
    # Where there is no repository at all, it is all that is known.
    alone = measured_code({"plugin": "own.py"}, tmp_path)
    assert (alone.revision, alone.dirty, len(alone.changes or "")) == (None, None, 16)


def test_untracked_modules_are_changes_and_other_files_are_not(nets, git):
    head = git(nets, "rev-parse", "HEAD")
    clean = Subject(repository="nets", revision=head, dirty=False)
    (nets / "deep").mkdir()
    (nets / ".gitignore").write_text("*.tmp.py\n")
    packages = nets / "venv" / "site-packages"
    packages.mkdir(parents=True)
    for other in (nets / "run.log", nets / "made.tmp.py", packages / "numpy.py"):
        other.write_text("")
    assert read_repository_state(nets) == read_repository_state(nets / "deep") == clean
    found = [read_repository_state(nets)]
    for name, text in (("a b.py", "1"), ("a b.py", "2"), ("deep/b.py", ""), ("deep/c.so", "")):
        (nets / name).write_text(text)
        found.append(read_repository_state(nets))
        assert read_repository_state(nets / "deep") == found[-1]
    assert [one.dirty for one in found] == [False] + [True] * 4
    assert len({one.changes for one in found}) == 5
    git(nets, "add", ".")
    git(nets, "commit", "--quiet", "-m", "second")
    assert read_repository_state(nets).changes is None


def test_each_of_several_plugins_counts(nets, git, tmp_path):
    for name in ("one.py", "two.py"):
        (tmp_path / name).write_text(name)
    tracked, *others = (str(nets / "net.py"), *(str(tmp_path / n) for n in ("one.py", "two.py")))
    found = [measured_code({"plugin": (tracked, *others[:count])}) for count in range(3)]
    assert {one.revision for one in found} == {git(nets, "rev-parse", "HEAD")}
    assert [one.dirty for one in found] == [False, True, True]
    assert len({one.changes for one in found}) == 3
    assert measured_code({"plugin": [*others, tracked]}) == found[2]


def test_the_order_of_plugins_decides_nothing(nets, git, tmp_path):
    """Plug-ins of two repositories, and two of none: always the same repository and changes."""
    tools = tmp_path / "a folder that comes first"
    tools.mkdir()
    git(tools, "init", "--quiet")
    git(tools, "remote", "add", "origin", "https://host/team/tools.git")
    for name, folder in (("tool.py", tools), ("one.py", tmp_path), ("two.py", tmp_path)):
        (folder / name).write_text(name)
    git(tools, "add", ".")
    git(tools, "commit", "--quiet", "-m", "first")
    paths = [nets / "net.py", tools / "tool.py", tmp_path / "one.py", tmp_path / "two.py"]
    orders = [*itertools.permutations(map(str, paths))][::5]
    found, *others = (measured_code({"plugin": order}) for order in orders)
    assert others == [found] * 4
    assert (found.repository, found.dirty) == ("host/team/tools", True)
    assert measured_code({"plugin": [str(path) for path in paths[:1]]}).repository == "nets"


def test_local_variables_of_git_are_left_out(monkeypatch, git, tmp_path):
    names = git(tmp_path, "rev-parse", "--local-env-vars").split()
    assert "GIT_INDEX_FILE" in names
    for name in (*names, "GIT_QUARANTINE_PATH", "GIT_LITERAL_PATHSPECS", "GIT_SSH_COMMAND"):
        monkeypatch.setenv(name, "0")
    left = {name for name in environment_for_git() if name in (*names, "GIT_QUARANTINE_PATH")}
    # Configuration of all repositories, such as safe.directory.
    assert left == {"GIT_CONFIG_COUNT"}
    assert "GIT_SSH_COMMAND" in environment_for_git()
    assert "GIT_LITERAL_PATHSPECS" not in environment_for_git()


def test_replaced_objects_are_not_read(tmp_path, git, monkeypatch):
    """Whoever can write to refs/replace would otherwise choose what a hash means."""
    git(tmp_path, "init", "--quiet", "r")
    folder, made = tmp_path / "r", {}
    for text in ("first", "false", "true"):
        (folder / "net.py").write_text(f"{text}\n")
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", "-m", text)
        made[text] = git(folder, "rev-parse", "HEAD")
    kinds = [
        f"{made[text]}{kind}" for kind in ("", "^{tree}", ":net.py") for text in ("true", "false")
    ]
    objects = git(folder, "rev-parse", *kinds).split()
    for true, false in zip(objects[::2], objects[1::2], strict=True):
        git(folder, "replace", true, false)
    assert git(folder, "show", f"{made['true']}:net.py") == "false"  # The replacement works.
    for value in (None, "", "0"):
        if value is not None:
            monkeypatch.setenv("GIT_NO_REPLACE_OBJECTS", value)
        assert read_only_git("show", f"{made['true']}:net.py", folder=folder) == "true"
        assert CommitGraph(folder).parents(made["true"]) == [made["false"]]
        with worktree(made["true"], folder) as place:
            assert (place / "net.py").read_text() == "true\n"
    monkeypatch.chdir(folder)
    assert repository.read_file_of_commit(made["true"], "net.py") == "true"


@pytest.mark.parametrize("text", ["", "-n", "a\0", "\0", "\ud800", "HEAD\n", "nothing"])
def test_texts_that_name_no_commit(nets, text):
    folder = nets
    with pytest.raises(GitError):
        repository.find_commit_hash(text, folder)


LINKS = {
    "direct": "a/file",
    "folder": "a",
    "absolute": "/etc/hostname",
    "above": "../secret",
    "a/up": "../a/file",
    "gone": "nothing",
    "loop": "loop",
}


def test_links_are_followed_in_a_commit_but_not_out_of_it(tmp_path, git, monkeypatch):
    (tmp_path / "r" / "a").mkdir(parents=True)
    folder = tmp_path / "r"
    (tmp_path / "secret").write_text("secret")
    git(folder, "init", "--quiet")
    (folder / "a" / "file").write_text("true\n")
    for name, target in LINKS.items():
        (folder / name).symlink_to(target)
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "links")
    commit = git(folder, "rev-parse", "HEAD")
    monkeypatch.chdir(folder)
    (folder / "a" / "file").write_text("not committed")
    for name in ("a/file", "direct", "folder/file", "a/up", "folder/up"):
        assert repository.read_file_of_commit(commit, name) == "true"
        assert repository.is_in_commit(commit, name)
    for name, reason in {
        "absolute": "is a link to /etc/hostname, which is outside",
        "above": "is a link to ../secret, which is outside",
        "gone": "is a link to a file that the commit does not contain",
        "loop": "leads to itself",
        "a": "is a folder",
        "folder": "is a folder",
    }.items():
        assert repository.is_in_commit(commit, name)
        with pytest.raises(GitError, match=reason):
            repository.read_file_of_commit(commit, name)
    for name in ("nothing", "x blob 3", "a/file/b", "a\nb"):
        assert not repository.is_in_commit(commit, name)
        with pytest.raises(GitError):
            repository.read_file_of_commit(commit, name)


def test_why_a_commit_is_unknown_is_told(nets, tmp_path, monkeypatch, limits):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_repository_state(nets).unknown == "git cannot be run: No such file or directory"
    assert read_repository_state(tmp_path) == Subject()  # nothing is missing
    monkeypatch.chdir(nets)
    assert measured_code({}).unknown is not None
    assert measured_code({"result_label": "commit=v1"}).unknown is None
    program = tmp_path / "git"
    program.write_text("#!/bin/sh\nexec /bin/sleep 9\n")
    program.chmod(0o755)
    limits(repository, _SECONDS=0.1)
    assert read_repository_state(nets).unknown == "git status takes more than 0.1 s"


def test_full_hashes():
    assert all(map(repository.is_full_hash, ("0123456789abcdef" * 4, "a" * 40)))
    others = ("a" * 39, "a" * 41, "a" * 7, "A" * 40, "g" * 40, "")
    assert not any(map(repository.is_full_hash, others))


def test_why_a_repository_lacks_a_commit(nets, tmp_path, monkeypatch, git):
    git(nets, "commit", "--quiet", "--allow-empty", "-m", "second")
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{nets}", str(shallow))
    assert f"git -C {shallow} fetch" in repository.why_commit_is_missing(shallow)
    assert repository.why_commit_is_missing(nets) == ""
    assert repository.why_commit_is_missing(tmp_path) == ""
    monkeypatch.chdir(shallow)
    assert "git -C . fetch" in repository.why_commit_is_missing()
    monkeypatch.setenv("GIT_QUARANTINE_PATH", "incoming")
    assert "post-receive" in repository.why_commit_is_missing(nets)


def test_uncommitted_changes_count_if_the_checked_out_commit_is_measured(nets, git):
    first = git(nets, "rev-parse", "HEAD")
    git(nets, "commit", "--quiet", "--allow-empty", "-m", "second")
    second = git(nets, "rev-parse", "HEAD")
    assert repository.uncommitted_changes_text("B", second, nets) == ""
    (nets / "net.py").write_text("a = 2\n")
    text = repository.uncommitted_changes_text("B", second, nets)
    assert text.endswith(f": B is the commit {second[:12]}")
    assert repository.uncommitted_changes_text("B", first, nets) == ""


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("git@github.com:owner/nets.git", "github.com/owner/nets"),
        ("ssh://git@github.com/owner/nets.git", "github.com/owner/nets"),
        ("https://github.com/owner/nets/", "github.com/owner/nets"),
        ("https://token@github.com/owner/nets", "github.com/owner/nets"),
        ("/srv/git/nets.git", "nets"),
        ("../nets", "nets"),
        ("file:///srv/git/nets.git", "nets"),
        (
            "https://me@dev.azure.com/team/My%20nets/_git/nets",
            "dev.azure.com/team/My%20nets/_git/nets",
        ),
        ("host:~me/nets.git/", "host/~me/nets"),
        ("ssh://me@[::1]:22/nets", "[::1]/nets"),
        # What else is in an address may be a secret.
        ("hg::https://me:hidden@Host/nets", "host"),
        ("https://host/nets?private_token=hidden", "host"),
        ("https://host/nets%3Ftoken%3Dhidden", "host"),
        ("https://host?private_token=hidden", "host"),
        ("https://host/nets#hidden", "host"),
        ("https://host/nets;token=hidden", "host"),
        ("https://me:hidden@host", "host"),
        ("https://me:hid@den@host/nets", "host/nets"),
        ("https://me:hid#den@host/nets", "host/nets"),
        ("codecommit::us-east-1://me:hidden@nets", "nets"),
        ("https://me:hid/den@host/nets", None),
        ("https://me:1/hidden@host/nets", None),
        ("https://host/me:hidden@nets", None),
        ("me:hidden@host:nets", None),
        ("file:///srv/nets?token=hidden", None),
        ("ext::ssh -i hidden host://nets", None),
    ],
)
def test_addresses(url, found):
    assert repository_address(url) == found


COMMIT_PAGES = {
    "git@github.com:OWNER/REPO.git": "https://github.com/OWNER/REPO/commit/{commit}",
    "https://github.com/OWNER/REPO": "https://github.com/OWNER/REPO/commit/{commit}",
    "ssh://git@host.example:2222/a/b.git": "https://host.example/a/b/commit/{commit}",
    "https://host.example:8443/a/b": "https://host.example:8443/a/b/commit/{commit}",
    "https://user:secret@host.example/a/b.git": "",
    "/srv/git/repo.git": "",
}


def test_the_address_of_a_commit_follows_from_the_remote(tmp_path, git):
    git(tmp_path, "init", "--quiet")
    assert repository.commit_url_template(tmp_path) == repository.commit_url_template(None) == ""
    for remote, address in COMMIT_PAGES.items():
        git(tmp_path, "config", "remote.origin.url", remote)
        assert repository.commit_url_template(tmp_path) == address


@pytest.mark.parametrize(
    ("errors", "reason"),
    [
        ("fatal: not a git repository\n", "not a git repository"),
        (
            "Preparing worktree (detached HEAD 3844a11)\n"
            "git-lfs filter-process: 1: git-lfs: not found\n"
            "fatal: the remote end hung up unexpectedly\n",
            "git-lfs filter-process: 1: git-lfs: not found; the remote end hung up unexpectedly",
        ),
        (
            "fatal: detected dubious ownership in /r\nTo add an exception, call:\n\n"
            "\tgit config --global --add safe.directory /r\n",
            "detected dubious ownership in /r; git config --global --add safe.directory /r",
        ),
        ("usage: git worktree\n", "usage: git worktree"),
        ("", ""),
    ],
)
def test_the_reason_of_a_program_that_git_starts_stands_before_its_own(errors, reason):
    assert repository.git_error_reason(errors) == reason


def test_of_a_missing_revision_similar_names_are_proposed(nets, git):
    git(nets, "update-ref", "refs/remotes/origin/base", "HEAD")
    name = git(nets, "branch", "--show-current")
    for text, proposal in {
        f"{name}x": f"; did you mean {name}?",
        "base": ", but there is origin/base",
        "nothing": "",
    }.items():
        with pytest.raises(repository.GitError) as refused:
            repository.find_commit_hash(text, nets)
        assert str(refused.value) == f"there is no branch, tag or commit {text}{proposal}"
