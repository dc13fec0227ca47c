"""Tests cnnbench with each supported version of Python and TensorFlow: nox -f scripts/noxfile.py

Needs nox and uv (`pip install nox uv`), the versions of Python, and a package index. An environment
takes 2 GB in .nox, and 5 minutes on two cores. To run one session of the list:
nox -f scripts/noxfile.py -s 'commands(3.10, least)'.

- commands: installs cnnbench as a release, and compares the first losses of many command lines
  (`first_losses.py`).
- tests: everyday tests.

"least" has the least version of each dependency that pyproject.toml allows, "newest" the newest.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parent.parent

CELLS = (
    ("3.10", "least"),
    ("3.10", "2.18"),
    ("3.10", "2.19"),
    ("3.10", "2.20"),
    ("3.10", "2.21"),
    ("3.11", "2.18"),
    ("3.11", "2.19"),
    ("3.11", "2.20"),
    ("3.11", "2.21"),
    ("3.12", "2.18"),
    ("3.12", "2.19"),
    ("3.12", "2.20"),
    ("3.12", "2.21"),
    # TensorFlow 2.18 and 2.19 have no wheels for Python 3.13.
    ("3.13", "2.20"),
    ("3.13", "2.21"),
    ("3.13", "newest"),
)
"""Versions of Python and TensorFlow."""

nox.options.default_venv_backend = "uv"
nox.options.sessions = ["commands"]


def _install(session: nox.Session, tensorflow: str, what: str) -> None:
    options = ["--resolution", "lowest-direct"] if tensorflow == "least" else []
    pin = [] if tensorflow in ("least", "newest") else [f"tensorflow=={tensorflow}.*"]
    session.install(*options, what, *pin)


@nox.session
@nox.parametrize("python,tensorflow", CELLS, ids=[", ".join(cell) for cell in CELLS])
def commands(session: nox.Session, tensorflow: str) -> None:
    """Command lines, whose first losses are known."""
    _install(session, tensorflow, str(ROOT))
    session.chdir(session.create_tmp())
    script = shutil.copy(ROOT / "scripts" / "first_losses.py", ".")
    session.run("python", "-c", _VERSIONS)
    session.run("python", script, *session.posargs)


@nox.session
@nox.parametrize("python,tensorflow", CELLS, ids=[", ".join(cell) for cell in CELLS])
def tests(session: nox.Session, tensorflow: str) -> None:
    """Everyday tests."""
    _install(session, tensorflow, f"{ROOT}[test]")
    words = ["-q", "-n", "auto", "--dist", "worksteal", "-m", "not slow"]
    session.run("python", "-m", "pytest", *words, *session.posargs)


_VERSIONS = """
import platform
from importlib.metadata import version
names = ("tensorflow", "keras", "numpy")
print("Python", platform.python_version(), *(f"{name} {version(name)}" for name in names))
"""
