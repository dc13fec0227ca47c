"""The packages: ``models/``, ``variable_mgr/``, ``configs/`` and ``docs/`` become part of
``cnnbench``. Wheels and source distributions also contain the commit from which they were built.

Everything else is in ``pyproject.toml``, which cannot search several folders for packages. A
top-level package called ``models`` would collide with the ``models/`` folder that many repositories
put on PYTHONPATH, hence the mapping. An editable install follows it as a release does;
``scripts/check_install`` tries both, and ``scripts/typecheck`` shows the mapped layout to mypy,
which does not follow it.
"""

from __future__ import annotations

import email
import re
import subprocess
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

FOLDERS = {
    "cnnbench": "cnnbench",
    "cnnbench.configs": "configs",
    "cnnbench.docs": "docs",
    "cnnbench.models": "models",
    "cnnbench.variable_mgr": "variable_mgr",
}
LINK = re.compile(r"(!?)(\[(?:[^\[\]]|\[[^\]]*\])*\])\((?!\w+:|#)([^)\s]+)\)")
ADDRESS = re.compile(r"(?:https://(?:[^/@]*@)?([\w.-]+)/|git@([\w.-]+):)([\w.~/-]+?)(?:\.git)?/?")


def output_of_git(*words: str) -> str:
    """The output of a git command in the checkout; "" outside of a checkout, or if git fails."""
    if not Path(".git").exists():
        return ""
    try:
        return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""


def project_urls() -> dict[str, str]:
    """The public address of the repository from which the package is built, if it is known.

    In a checkout, it is the address of the remote repository `origin`, without user and password. A
    source distribution contains the address in its metadata.
    """
    metadata = Path("PKG-INFO")
    if metadata.exists():
        lines = email.message_from_bytes(metadata.read_bytes()).get_all("Project-URL", [])
        return dict(line.split(", ", 1) for line in lines)
    address = output_of_git("remote", "get-url", "origin").strip()
    found = ADDRESS.fullmatch(address)
    return {"Repository": f"https://{found[1] or found[2]}/{found[3]}"} if found else {}


def built_commit() -> str:
    """The commit from which the package is built, with "-dirty" behind it if there are uncommitted
    changes; "" if it is unknown. A source distribution contains the commit.
    """
    stored = Path("cnnbench", "commit.txt")
    words = ("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    return output_of_git(*words) or (stored.read_text("ascii") if stored.exists() else "")


def description() -> str:
    """The text of README.md for a package index, which has only this file: links to other files and
    pictures lead to the public address of the repository, if it is known.
    """
    text = Path("README.md").read_text("utf-8")
    address = project_urls().get("Repository")
    if address is None:
        return text
    commit = built_commit().strip()
    place = commit if re.fullmatch("[0-9a-f]{40,64}", commit) else "HEAD"

    def absolute(link: re.Match[str]) -> str:
        kind = "raw" if link[1] else "blob"
        return f"{link[1]}{link[2]}({address}/{kind}/{place}/{link[3]})"

    return LINK.sub(absolute, text)


def write_commit(folder: str) -> None:
    """Writes the commit of the checkout into the copy of the package in ``folder``, for
    ``cnnbench.version``.
    """
    commit = built_commit()
    if commit:
        Path(folder, "cnnbench", "commit.txt").write_text(commit, encoding="ascii")


class BuildPackage(build_py):
    """Copies the package into the folder from which a wheel is made."""

    def run(self) -> None:
        """Builds the package, and writes its commit."""
        super().run()
        if not self.editable_mode:
            write_commit(self.build_lib)


class SourceDistribution(sdist):
    """Copies the checkout into the folder of which a source distribution is made."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Copies the files, and writes the commit."""
        super().make_release_tree(base_dir, files)
        write_commit(base_dir)


setup(
    packages=[
        package
        for name, folder in FOLDERS.items()
        for package in (name, *(f"{name}.{found}" for found in find_packages(folder)))
    ],
    package_dir=FOLDERS,
    project_urls=project_urls(),
    long_description=description(),
    long_description_content_type="text/markdown",
    cmdclass={"build_py": BuildPackage, "sdist": SourceDistribution},
)
