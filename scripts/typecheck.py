"""Runs mypy (strict, see pyproject.toml) over the package as it is imported, the scripts, the
examples of docs/ and a program with errors that mypy has to report (tests/typed).

``setup.py`` maps ``configs/``, ``models/`` and ``variable_mgr/`` into ``cnnbench``. mypy does not
follow this mapping, so it checks a tree of symbolic links with the installed layout. Paths in
mypy's messages are converted to paths in the checkout.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TREE = Path(".mypy_cache") / "tree"
MAPPED = ("configs", "models", "variable_mgr")


def link_tree(root: Path, tree: Path) -> None:
    """Creates the folder ``tree/cnnbench`` with links, in the layout of the installed package.

    Links that are right already stay untouched, so two checks may run at once.
    """
    package = tree / "cnnbench"
    package.mkdir(parents=True, exist_ok=True)
    wanted = {entry.name: entry for entry in (root / "cnnbench").iterdir()}
    wanted.update({name: root / name for name in MAPPED})
    wanted.pop("__pycache__", None)
    for link in package.iterdir():
        target = wanted.get(link.name)
        if target is None or not link.is_symlink() or os.readlink(link) != str(target):
            link.unlink(missing_ok=True)
    for name, target in wanted.items():
        try:
            (package / name).symlink_to(target)
        except FileExistsError:
            continue


def checkout_paths(text: str, tree: str) -> str:
    """Replaces paths of the link tree by paths of the checkout in mypy's output."""
    mapped = "|".join(MAPPED)
    prefix = re.escape(tree + "/")
    text = re.sub(rf"^{prefix}cnnbench/({mapped})/", r"\1/", text, flags=re.MULTILINE)
    return re.sub(rf"^{prefix}", "", text, flags=re.MULTILINE)


def run_mypy(arguments: Sequence[str], printed: set[str]) -> int:
    """Runs mypy with the package's tree on its path; returns the exit status.

    Prints the lines that earlier calls have not printed.
    """
    environment = dict(os.environ, MYPYPATH=str(TREE))
    command = [sys.executable, "-m", "mypy", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    lines = checkout_paths(done.stdout, str(TREE)).splitlines()
    for line in lines:
        if line not in printed:
            print(line, flush=True)
    printed.update(lines)
    return done.returncode


def main(argv: Sequence[str] | None = None) -> int:
    """Checks the package and all programs; returns 0 if there are no errors."""
    extra = list(sys.argv[1:] if argv is None else argv)
    link_tree(ROOT, ROOT / TREE)
    printed: set[str] = set()
    package = run_mypy(["-p", "cnnbench", *extra], printed)
    programs = [
        str(path.relative_to(ROOT))
        for folder in ("scripts", "docs/examples", "tests/typed")
        for path in sorted((ROOT / folder).rglob("*.py"))
    ]
    # With other values of --follow-imports, mypy would check the package again, here and next time.
    return max(package, run_mypy([*programs, *extra], printed))


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # The reader of output may end early.
    sys.exit(main())
