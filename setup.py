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


def write_commit(folder: str) -> None:
    """Writes the commit of the checkout into the copy of the package in ``folder``, for
    ``cnnbench.version``. A source distribution already contains the file.
    """
    commit = output_of_git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
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
    cmdclass={"build_py": BuildPackage, "sdist": SourceDistribution},
)
