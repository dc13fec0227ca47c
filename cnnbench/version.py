"""The version of cnnbench, and the commit from which an installed package was built."""

from __future__ import annotations

from pathlib import Path

__version__ = "1.1.0"


def built_commit() -> str | None:
    """Returns the commit that `setup.py` wrote into a wheel or a source distribution, followed by
    ``-dirty`` if tracked files differed from it. None in a checkout, and if the package was built
    outside of a git repository.
    """
    file = Path(__file__).with_name("commit.txt")
    return file.read_text(encoding="ascii").strip() or None if file.exists() else None
