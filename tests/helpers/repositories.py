"""A repository in which a branch was merged, one rebased, one squashed, and a commit reverted."""

from __future__ import annotations


def grown(folder, git):
    """Makes it; returns its commits by short names, in the order in which they were made.

    main 1 to 4, beside of them b1 and b2 of a branch that `merge` merges; r1 and r2, rebased onto
    m5 as n1 and n2; s1 and s2, squashed as `squash`; m6, which `revert` reverts; tag v1, moved from
    m7 to m8; o1 of a branch that is not merged.
    """
    commits = {}

    def commit(name, file):
        (folder / file).write_text(name)
        git(folder, "add", ".")
        keep(name, "commit", "-q", "-m", f"commit {name}")

    def keep(name, *words):
        git(folder, *words)
        commits[name] = git(folder, "rev-parse", "HEAD")

    folder.mkdir()
    git(folder, "init", "-q", "--initial-branch=main")
    for name in ("m1", "m2", "m3"):
        commit(name, "main")
    git(folder, "checkout", "-q", "-b", "side")
    git(folder, "checkout", "-q", "main")
    commit("m4", "main")
    git(folder, "checkout", "-q", "side")
    for name in ("b1", "b2"):
        commit(name, "side")
    git(folder, "checkout", "-q", "main")
    keep("merge", "merge", "-q", "--no-ff", "side", "-m", "merge side")
    git(folder, "checkout", "-q", "-b", "feature")
    for name in ("r1", "r2"):
        commit(name, name)
    git(folder, "checkout", "-q", "main")
    commit("m5", "main")
    git(folder, "rebase", "-q", "main", "feature")
    keep("n1", "checkout", "-q", "HEAD~1")
    git(folder, "checkout", "-q", "main")
    keep("n2", "merge", "-q", "--ff-only", "feature")
    git(folder, "checkout", "-q", "-b", "squashed")
    for name in ("s1", "s2"):
        commit(name, name)
    git(folder, "checkout", "-q", "main")
    git(folder, "merge", "-q", "--squash", "squashed")
    keep("squash", "commit", "-q", "-m", "all of it")
    git(folder, "branch", "-q", "-D", "side", "feature", "squashed")
    commit("m6", "main")
    keep("revert", "revert", "--no-edit", "HEAD")
    commit("m7", "main")
    git(folder, "tag", "v1")
    commit("m8", "main")
    git(folder, "tag", "-f", "v1")
    git(folder, "checkout", "-q", "-b", "open")
    commit("o1", "open")
    git(folder, "checkout", "-q", "main")
    return commits
