"""Runs git without side effects, finds the repository and commit of the measured code, and orders
commits.

The configuration of an untrusted repository may name programs that git runs even when it only
reads: hooks, a file system monitor, filters, a signature checker, connection helpers. `git` reads
facts and runs none of them. `safe_git_command` is for commands that change working trees, so it
allows the filters and the connection that a checkout needs.

In a hook, git sets variables that name the hook's repository and index. All commands and processes
run with `environment_for_git`, which does not contain these variables, so they find the repository
of their folder.

A record contains the hash of a commit. Later, the commit may have been replaced by a rebase or a
squash, merged, or reverted by another commit, or a tag that pointed to it may have been moved:
`CommitGraph` says so.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

from cnnbench import version
from cnnbench.base import plugins
from cnnbench.base.stats import group_by
from cnnbench.base.text import count_text, first_few, suggestion
from cnnbench.base.values import labels_from_config
from cnnbench.records.subject import Subject

_SECONDS = 10.0

# Environment variables that select a repository: the output of `git rev-parse --local-env-vars`,
# and variables that git sets for hooks. GIT_CONFIG_COUNT is kept, because containers set
# safe.directory with it.
_LOCAL = re.compile(
    "GIT_(ALTERNATE_OBJECT_DIRECTORIES|COMMON_DIR|CONFIG|CONFIG_PARAMETERS|DIR|GRAFT_FILE|PREFIX|"
    "IMPLICIT_WORK_TREE|INDEX_FILE|INTERNAL_SUPER_PREFIX|NO_REPLACE_OBJECTS|OBJECT_DIRECTORY|"
    "QUARANTINE_PATH|REPLACE_REF_BASE|SHALLOW_FILE|WORK_TREE|(GLOB|ICASE|LITERAL|NOGLOB)_PATHSPECS)"
)

# Addresses of repositories: scheme://user:password@host:port/owner/name, or user@host:owner/name.
# All other parts, such as a query or a password with a slash, may be secret, so an address with
# such parts does not match.
_HOST = r"(?P<host>[\w.-]*|\[[\w:.]+\])"
_PATH = r"(?P<path>(?!//)(?:[\w.~+/-]|%20)+)"
_LONG = re.compile(rf"(?:https?|ftps?|ssh|git|git\+ssh|file)://(?:[^/]*@)?{_HOST}(?::\d+)?/{_PATH}")
_SHORT = re.compile(rf"(?:[^/:@]+@)?{_HOST}:{_PATH}")
_OTHER = re.compile(rf"(?:\w+::)?[\w+.-]+://(?:[^/]*@)?{_HOST}(?::\d+)?(?P<path>)(?:[/?#][^@]*)?")

_SAFE_OPTIONS = (
    # Commits and files are read as their hashes say, even if refs/replace names other objects.
    "--no-replace-objects",
    "-c",
    "core.hooksPath=/dev/null",
    # The empty value switches the file system monitor off in every version of git. Old versions
    # would take `core.fsmonitor=false` as the name of a program to run.
    "-c",
    "core.fsmonitor=",
    "-c",
    "log.showSignature=false",
)
# GIT_OPTIONAL_LOCKS=0: a benchmark must not block a commit of the user. GIT_NO_LAZY_FETCH=1: a
# fetch would run programs such as core.sshCommand. GIT_ALLOW_PROTOCOL=none: the same for git before
# 2.44. LC_ALL=C: messages must be in English.
_READING = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",
    "LC_ALL": "C",
}
# Two kinds of files are not compared: for files with a filter, git would run the filter; for
# submodules, git would obey their configuration.
_TRACKED = ("--ignore-submodules=dirty", "--", ":(top,attr:!filter)")
_STATUS = ("status", "--porcelain=v2", "--branch", "--untracked-files=no", *_TRACKED)
_CHANGES = (
    "diff",
    "--no-ext-diff",
    "--no-textconv",
    "--no-renames",
    "--no-color",
    "--full-index",
    "--submodule=short",
    "HEAD",
    *_TRACKED,
)
# Of untracked files, only those that Python can import count as changes, because programs also
# write their results into a checkout.
_MODULES = (
    "ls-files",
    "--others",
    "--exclude-standard",
    "--full-name",
    "-z",
    "--",
    *(f":(top,glob)**/*{suffix}" for suffix in (".py", ".so")),
    ":(exclude,top,glob)**/site-packages/**",
)
_OWN_REASON = re.compile("(?:fatal|error): ")
"""The beginning of git's own line about a failure."""

_PROGRESS = re.compile("(?:hint|warning): |Preparing worktree|Updating files|Filtering content")
"""The beginning of lines that do not contain the reason for a failure."""

_OID = "# branch.oid "
_NO_REVISION = "Needed a single revision"
"""The message of git about a name that is not a revision."""


class GitError(Exception):
    """A git command failed. The message is the reason that git has given."""


def environment_for_git() -> dict[str, str]:
    """This process's environment variables, except those that tell git which repository to use."""
    return {name: value for name, value in os.environ.items() if not _LOCAL.fullmatch(name)}


def safe_git_command(folder: str | Path | None = None) -> list[str]:
    """Returns the beginning of a git command line: options that prevent git from running hooks and
    a file system monitor, and from reading other objects in place of those with a hash.
    """
    place = [] if folder is None else ["-C", str(folder)]
    return ["git", *place, *_SAFE_OPTIONS]


def git(
    *arguments: str, folder: str | Path | None = None, timeout: float = 60.0, input: str = ""
) -> str:
    """Runs a read-only git command, which reads the text `input`, and returns its stripped output.
    GitError if the command fails.

    The command also fails after `timeout` seconds. Write "--" after revisions. Otherwise, git
    refuses a revision if a file has the same name, and a change may add such a file.
    """
    words, env = [*safe_git_command(folder), *arguments], {**environment_for_git(), **_READING}
    try:
        done = subprocess.run(
            words,
            input=input.encode(),
            capture_output=True,
            env=env,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise GitError(f"git {arguments[0]} takes more than {timeout:g} s") from None
    except OSError as error:
        raise GitError(f"git cannot be run: {error.strerror}") from None
    except ValueError:  # A null character, or a character that has no bytes.
        raise GitError("contains a character that git cannot read") from None
    if done.returncode != 0:
        raise GitError(
            git_error_reason(os.fsdecode(done.stderr)) or f"git {arguments[0]} finds nothing"
        )
    return done.stdout.decode(errors="replace").strip()


def is_in_commit(commit: str, path: str) -> bool:
    """Whether a commit contains a path from the top of the repository, directly or by links. Also
    true if the path is, or leads through, a link that cannot be followed in the commit.
    """
    try:
        found = _find_object(commit, path, "--batch-check")[0]
    except GitError:
        return False
    return found not in ("missing", "notdir")


def read_file_of_commit(commit: str, path: str) -> str:
    """Reads a file of a commit, without spaces at its end. Links are followed within the commit.

    Args:
      commit: hash of the commit.
      path: path of the file from the top of the repository.

    Raises GitError if the commit does not contain the file, or if a link leads out of the
    repository.
    """
    kind, content = _find_object(commit, path, "--batch")
    match kind:
        case "blob":
            return content
        case "tree" | "commit":
            reason = "is a folder"
        case "symlink":
            reason = f"is a link to {content}, which is outside of the repository"
        case "dangling":
            reason = "is a link to a file that the commit does not contain"
        case "loop":
            reason = "is a link that leads to itself"
        case _:
            reason = f"there is no file {path} in the commit {abbreviate_hash(commit)}"
    raise GitError(reason)


def _find_object(commit: str, path: str, how: str) -> tuple[str, str]:
    """Returns the kind of the object that a path in a commit leads to, or a word of git that says
    why there is none, and what git prints behind: the content, or the target of a link.

    `how` is an option of git cat-file: --batch or --batch-check (without the content).
    """
    name = f"{commit}:{path}"
    if "\n" in path:
        raise GitError("contains a line break")
    head, _, content = git("cat-file", how, "--follow-symlinks", input=name).partition("\n")
    if head == f"{name} missing":
        return "missing", ""
    first, second, *_ = head.split(maxsplit=2)  # A hash and a kind, or a word and a length.
    return (second if is_full_hash(first) else first), content


def git_error_reason(errors: str) -> str:
    """Extracts the reason for a failure from git's standard error, and the git config command that
    git advises, if any.

    Programs that git starts, such as a filter, write their reasons before git's own line.
    """
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    own = next((place for place, line in enumerate(lines) if _OWN_REASON.match(line)), None)
    if own is None:
        return lines[-1] if lines else ""
    others = [line for line in lines[:own] if not _PROGRESS.match(line)]
    advice = [line for line in lines[own + 1 :] if line.startswith("git config ")]
    return "; ".join([*others, _OWN_REASON.sub("", lines[own], count=1), *advice])


def find_commit_hash(text: str, folder: str | Path | None = None) -> str:
    """Hash of the commit that a branch, tag or abbreviated hash names. GitError if none."""
    # Git would take a text that begins with "-" as an option.
    if not text or text.startswith("-"):
        raise GitError("is not the name of a commit")
    try:
        return git("rev-parse", "--verify", f"{text}^{{commit}}", folder=folder)
    except GitError as error:
        reason = str(error)
        if reason == _NO_REVISION:
            reason = why_commit_is_missing(folder) or _unknown_reason(text, folder)
        raise GitError(reason) from None


def _unknown_reason(text: str, folder: str | Path | None) -> str:
    """Returns a message that nothing is named `text`, with a branch or tag of a similar name."""
    reason = f"there is no branch, tag or commit {text}"
    listed = git("for-each-ref", "--format=%(refname:short)", folder=folder)
    names = listed.splitlines()
    remote = [name for name in names if name.endswith(f"/{text}")]
    if remote:
        return f"{reason}, but there is {first_few(remote, _MOST_NAMED, ' and ')}"
    similar = suggestion(text, names)
    return f"{reason}; {similar}" if similar else reason


def is_full_hash(text: str) -> bool:
    """Whether a text is an unabbreviated hash. Git then never takes it for a branch or a tag."""
    return len(text) in _HASH_LENGTHS and _HASH.fullmatch(text) is not None


def why_commit_is_missing(folder: str | Path | None = None) -> str:
    """Explains why a repository may lack a commit, and how to get it; "" if unknown."""
    if "GIT_QUARANTINE_PATH" in os.environ:
        return "git accepts the commits of a push after this hook: measure them in post-receive"
    with contextlib.suppress(GitError):
        if git("rev-parse", "--is-shallow-repository", folder=folder) == "true":
            return f"a shallow clone, which git -C {folder or '.'} fetch --unshallow completes"
    return ""


# Finds host and path in the address of a remote, such as git@github.com:OWNER/REPO.git. The port of
# an ssh:// address is dropped, because the host's web pages have another one.
_REMOTE = re.compile(
    r"(?:https://([\w.-]+\w(?::\d+)?)/|ssh://git@([\w.-]+\w)(?::\d+)?/|git@([\w.-]+\w):)"
    r"([\w./-]+?)(?:\.git)?/?"
)


def commit_url_template(folder: str | Path | None) -> str:
    """Address of a page about a commit on the host of the repository's remote `origin`, with
    {commit} in place of the hash. Returns "" without a remote that has such pages.
    """
    if folder is None:
        return ""
    with contextlib.suppress(GitError):
        remote = _REMOTE.fullmatch(git("remote", "get-url", "origin", folder=folder))
        if remote is not None:
            host = remote[1] or remote[2] or remote[3]
            return f"https://{host}/{remote[4]}/commit/{{commit}}"
    return ""


def measured_code(
    flags: Mapping[str, Any], folder: str | Path | None = None, parts: Iterable[str] | None = None
) -> Subject:
    """Finds the repository, the commit and the uncommitted changes of the code that a run measures.

    The first rule that applies decides:

    1. The repository of `folder`, if it is given: the checkout from which A or B of a comparison
    runs.

    2. The repository of a plug-in. Of several repositories, the first by name is used, so that the
    order of plug-ins does not matter.

    3. The repository of the working directory.

    4. None: then cnnbench itself is measured, and its commit is one of the recorded properties of
    the software.

    Plug-ins that this repository does not track count as uncommitted changes. So do their `parts`,
    by default those of the plug-ins that are loaded in this process.
    """
    files = sorted(
        {
            path.resolve()
            for name in plugins.plugin_files_of_flags(flags)
            if (path := Path(folder or "", name)).is_file()
        }
    )
    place, homes = folder, []
    for path in files if folder is None else ():
        home = read_repository_state(path.parent)
        if home != Subject():
            homes.append(((home.repository or "", home.revision or ""), path.parent, home))
    if homes:
        _, place, subject = min(homes, key=lambda home: home[0])
    else:
        subject = read_repository_state(folder)
    if parts is None:
        parts = plugins.files_used_by_plugins(flags)
    own = [path for path in (*files, *map(Path, parts)) if not _is_tracked(place, path)]
    if own and subject.unknown is None:
        texts = sorted(path.read_bytes() for path in own if os.access(path, os.R_OK))
        changes = _short_sha256((subject.changes or "").encode(), *texts)
        subject = replace(subject, dirty=True if subject.revision else None, changes=changes)
    unknown = cnnbench_checkout().unknown if subject == Subject() else subject.unknown
    return replace(subject, unknown=None if "commit" in labels_from_config(flags) else unknown)


def _is_tracked(folder: str | Path | None, file: Path) -> bool:
    with contextlib.suppress(GitError):
        return bool(git("ls-files", "--error-unmatch", "--", str(file), folder=folder))
    return False


def cnnbench_checkout() -> Subject:
    """Reads repository, commit and uncommitted changes of the git checkout from which cnnbench
    runs. An installed package knows the commit from which it was built, and whether there were
    uncommitted changes; all are None if it was built outside of a git repository.
    """
    folder = Path(version.__file__).resolve().parent.parent
    if (folder / ".git").exists():
        return read_repository_state(folder)
    commit, _, dirty = (version.built_commit() or "").partition("-")
    return Subject(revision=commit, dirty=bool(dirty)) if commit else Subject()


def read_repository_state(folder: str | Path | None = None) -> Subject:
    """Reads repository, commit and uncommitted changes of a folder. All are None if the folder is
    in no repository.

    Changes are changed tracked files, and modules that are neither tracked nor ignored. Files with
    a filter, such as Git LFS, and changes within submodules do not count.
    """
    try:
        lines = git(*_STATUS, folder=folder, timeout=_SECONDS).splitlines()
        commit = "".join(line[len(_OID) :] for line in lines if line.startswith(_OID))
        if commit in ("", "(initial)"):
            raise GitError("nothing is committed yet")
        parts = list(_untracked_modules(folder))
        if not all(line.startswith("#") for line in lines):
            parts.insert(0, git(*_CHANGES, folder=folder, timeout=_SECONDS).encode())
    except GitError as error:
        # The paths are relative, because the working directory may have been removed. A bare
        # repository has a file HEAD instead of a folder .git.
        above = (os.path.join(folder or "", *[".."] * up) for up in range(64))
        names = (os.path.join(place, name) for place in above for name in (".git", "HEAD"))
        return Subject(unknown=str(error) if any(map(os.path.exists, names)) else None)
    changes = _short_sha256(*parts) if parts else None
    return Subject(
        repository=_repository_name(folder),
        revision=commit,
        dirty=changes is not None,
        changes=changes,
    )


def uncommitted_changes_text(name: str, commit: str, folder: str | Path | None = None) -> str:
    """Returns text that says that the uncommitted changes of a checkout are not measured, if the
    measured `commit` is the current commit of the checkout; "" if there are no such changes.

    `name` is the name of the commit in the text, such as "B" or "BAD".
    """
    checkout = read_repository_state(folder)
    if checkout.revision != commit or not checkout.dirty:
        return ""
    return f"uncommitted changes are not measured: {name} is the commit {abbreviate_hash(commit)}"


def _untracked_modules(folder: str | Path | None) -> Iterator[bytes]:
    """Yields the path and the content of each Python module that git neither tracks nor ignores."""
    names = git(*_MODULES, folder=folder, timeout=_SECONDS).split("\0")
    top = git("rev-parse", "--show-toplevel", folder=folder) if names != [""] else ""
    for name in filter(None, names):
        yield name.encode(errors="replace")
        with contextlib.suppress(OSError):
            yield Path(top, name).read_bytes()


def _short_sha256(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def _repository_name(folder: str | Path | None) -> str | None:
    """Names a repository by the address of its remote `origin`, or else by its main folder."""
    with contextlib.suppress(GitError):
        return repository_address(
            git("config", "--get", "remote.origin.url", folder=folder, timeout=_SECONDS)
        )
    with contextlib.suppress(GitError):
        shared = git("rev-parse", "--git-common-dir", folder=folder, timeout=_SECONDS)
        common = Path(folder or "", shared).resolve()
        return (common.parent if common.name == ".git" else common).name
    return None


def repository_address(url: str) -> str | None:
    """Reduces the address of a repository to host/path, without protocol, user and password.

    For a local path, only the last part is returned. For an address in another form, only the host
    is returned, or None if it is unknown.
    """
    match = _LONG.fullmatch(url) or _SHORT.fullmatch(url) or _OTHER.fullmatch(url)
    if match is None and ":" in url.partition("/")[0]:
        return None
    path = (url if match is None else match["path"]).strip("/").removesuffix(".git")
    if match is None or not match["host"]:
        return Path(path).name or None
    return f"{match['host'].lower()}/{path}".rstrip("/")


T = TypeVar("T")

_SHORT_LENGTH, _ABBREVIATIONS = 12, range(7, 13)
_MOST_NAMED = 4
_AT_ONCE = 500
"""Maximum number of commits in one command line."""

_FIELDS = 5

_HASH = re.compile("[0-9a-f]{7,64}")
_HASH_LENGTHS = (40, 64)
"""Digits of a full hash in repositories with SHA-1 and with SHA-256."""

_REVERTED = re.compile(r"^This reverts commit ([0-9a-f]{7,64})", re.MULTILINE)
_FORM = "--format=%H%x00%T%x00%an %ae %at%x00%s%x00{}%x00"


class CommitGraph:
    """All commits of all branches and tags in a repository, ancestors before descendants. Raises
    GitError if there is no repository.

    Attributes:
      places: the position of each commit in the order of history; ancestors come before
        descendants. Keys are full hashes, unique abbreviations of 7 to 12 digits, and names of
        branches and tags.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = folder
        listed = git("rev-list", "--all", "--topo-order", "--reverse", "--parents", folder=folder)
        lines = [line.split() for line in listed.splitlines()]
        self._commits = [commit for commit, *_ in lines]
        self._parents = {commit: parents for commit, *parents in lines}
        self.places: dict[str, int] = {name: place for place, name in enumerate(self._commits)}
        whole = self.places.copy()
        for digits in _ABBREVIATIONS:
            short = group_by(self._commits, itemgetter(slice(digits)))
            self.places |= {
                name: whole[commits[0]] for name, commits in short.items() if len(commits) == 1
            }
        self._refs: dict[str, str] = {}
        form = "--format=%(refname:short) %(objectname) %(*objectname)"
        for line in git(
            "for-each-ref", form, "refs/tags", "refs/heads", folder=folder
        ).splitlines():
            name, *objects = line.split()
            if objects[-1] in whole and name not in self.places:
                self._refs[name] = objects[-1]
        self.places |= {name: whole[commit] for name, commit in self._refs.items()}

    def is_same_or_descendant(self, commit: str, ancestor: str) -> bool | None:
        """Whether `commit` is `ancestor` or a descendant of it; None if one is unknown."""
        if commit not in self.places or ancestor not in self.places:
            return None
        wanted = self.places[ancestor]
        waiting, seen = [self._commits[self.places[commit]]], set()
        while waiting:
            reached = waiting.pop()
            if self.places[reached] == wanted:
                return True
            # In the order of the graph, ancestors come first, so commits before `ancestor` need not
            # be searched.
            if reached not in seen and self.places[reached] > wanted:
                seen.add(reached)
                waiting += (parent for parent in self._parents[reached] if parent in self.places)
        return False

    def parents(self, commit: str) -> list[str]:
        """Hashes of the parents of a commit; empty if the commit is unknown."""
        place = self.places.get(commit)
        return [] if place is None else self._parents[self._commits[place]]

    def commit_remarks(self, names: Sequence[str]) -> list[str]:
        """Writes sentences for the history of measurements about measured commits that do not
        follow each other on one branch.

        `names` are the names in the records, in order: full or abbreviated hashes, branches, tags.
        """
        known = {name: self._commits[self.places[name]] for name in names if name in self.places}
        lines = [*self._unreachable([name for name in names if name not in known])]
        if moving := [name for name in names if name in self._refs]:
            places = [f"{name} ({abbreviate_hash(self._refs[name])})" for name in moving]
            lines.append(
                "Names of branches and tags are placed where they point now: "
                f"{_names_text(places)}. If one was moved since, another commit was measured."
            )
        with contextlib.suppress(GitError):  # HEAD may be missing.
            lines += self._branch_remarks([*dict.fromkeys(known.values())])
        return lines + self.revert_remarks([*dict.fromkeys(known.values())])

    def revert_remarks(self, commits: Sequence[str]) -> list[str]:
        """Writes a sentence about each of the given commits that reverts another commit."""
        lines = []
        for start in range(0, len(commits), _AT_ONCE):
            some = commits[start : start + _AT_ONCE]
            for commit, *_, body in self._commit_log("--no-walk=unsorted", *some, body="%b"):
                if other := reverted_commit(body):
                    lines.append(f"{abbreviate_hash(commit)} reverts {abbreviate_hash(other)}.")
        return lines

    def _unreachable(self, names: Sequence[str]) -> Iterator[str]:
        """Yields sentences about measured commits that no branch and no tag contains."""
        if not names:
            return
        successors = self.replacing_commits(names)
        for how, pairs in group_by(successors.items(), lambda pair: pair[1][1]).items():
            texts = [
                f"{abbreviate_hash(name)} is now {abbreviate_hash(commit)}"
                for name, (commit, _) in pairs
            ]
            number = count_text(len(pairs), "measured commit was", "measured commits were")
            yield f"{number} replaced, as by {how}: {_names_text(texts)}."
        if missing := [abbreviate_hash(name) for name in names if name not in successors]:
            number = count_text(len(missing), "measured commit is", "measured commits are")
            yield f"{number} on no branch or tag of the repository: {_names_text(missing)}."
        which = count_text(len(names), "commit follows", "commits follow")
        yield f"Without a place in the repository, {which} the one that was measured before."

    def replacing_commits(self, names: Sequence[str]) -> dict[str, tuple[str, str]]:
        """Finds the commits that replaced the given commits in the history, and how: by "a rebase"
        or "a squash".

        Only commits that no branch or tag contains, and that git still has, can be found.

        After a rebase, author, author date and subject are unchanged. The squash of an up-to-date
        branch has the same files as the last commit of the branch.
        """
        names = [name for name in names if _HASH.fullmatch(name) and name not in self.places]
        if not names:
            return {}
        try:
            lost = [*self._commit_log("--no-walk=unsorted", "--ignore-missing", *names[:_AT_ONCE])]
            present = [*self._commit_log("--all")] if lost else []
        except GitError:
            return {}
        by_author = {(author, subject): commit for commit, _, author, subject, _ in present}
        by_tree = {tree: commit for commit, tree, *_ in present}
        replaced = {}
        for commit, tree, author, subject, _ in lost:
            name = next(name for name in names if commit.startswith(name))
            if successor := by_author.get((author, subject)):
                replaced[name] = (successor, "a rebase")
            elif successor := by_tree.get(tree):
                replaced[name] = (successor, "a squash")
        return replaced

    def _commit_log(self, *arguments: str, body: str = "") -> Iterator[Sequence[str]]:
        """Yields hash, tree, author with date, subject and body of commits in `git log`."""
        text = git("log", _FORM.format(body), *arguments, "--", folder=self._folder)
        fields = text.split("\0")
        for start in range(0, len(fields) - _FIELDS + 1, _FIELDS):
            commit, *others = fields[start : start + _FIELDS]
            yield (commit.strip(), *others)

    def _branch_remarks(self, commits: Sequence[str]) -> Iterator[str]:
        """Yields sentences about measured commits that are not on the first-parent line of HEAD,
        and about the merges that added them.
        """
        options = ("--first-parent", "--reverse", "HEAD", "--")
        line = git("rev-list", *options, folder=self._folder).split()
        aside = sorted({*commits} - {*line}, key=self.places.__getitem__)
        merges = [merge_commit for merge_commit in line if len(self._parents[merge_commit]) > 1]
        by_merge = group_by(
            aside,
            lambda commit: next(
                (merge for merge in merges if self.is_same_or_descendant(merge, commit)), ""
            ),
        )
        for merge, some in by_merge.items():
            names = _names_text([abbreviate_hash(commit) for commit in some])
            if merge:
                yield f"{abbreviate_hash(merge)} merged another branch, with {names}."
            else:
                yield f"HEAD does not contain {names}."


def reverted_commit(message: str) -> str:
    """Reads from a message the hash of the commit that it reverts; "" if it is not a revert."""
    match = _REVERTED.search(message)
    return match[1] if match else ""


def sort_by_optional_place(items: Iterable[T], place: Callable[[T], int | None]) -> list[T]:
    """Sorts items by their positions, such as the positions of commits. An item without a position
    (None) stays behind its predecessor in `items`.
    """
    placed: list[tuple[int, T]] = []
    last = -1
    for item in items:
        own = place(item)
        last = last if own is None else own
        placed.append((last, item))
    return [item for _, item in sorted(placed, key=lambda pair: pair[0])]


def _names_text(names: Sequence[str]) -> str:
    return first_few(names, _MOST_NAMED, ", ")


def abbreviate_hash(name: str) -> str:
    """Abbreviates the hash of a commit to 12 digits. Other names remain unchanged."""
    return name[:_SHORT_LENGTH] if _HASH.fullmatch(name) else name
