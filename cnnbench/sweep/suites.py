"""The suites that come with cnnbench, by name."""

from __future__ import annotations

import os
from importlib import resources

from cnnbench.errors import UsageError

_PACKAGE = "cnnbench.configs"
_ENDINGS = (".yaml", ".yml")


def names() -> tuple[str, ...]:
    """Names of the shipped suites, sorted."""
    files = resources.files(_PACKAGE).iterdir()
    return tuple(sorted(f.name.removesuffix(".yaml") for f in files if f.name.endswith(".yaml")))


def find(text: str) -> str:
    """The path of a suite.

    Args:
      text: a path, or the name of a shipped suite; a file of that name comes first.

    Raises:
      UsageError: neither; lists the names.
    """
    if os.path.isfile(text):
        return text
    if text in names():
        path = str(resources.files(_PACKAGE).joinpath(f"{text}.yaml"))
        relative = os.path.relpath(path)
        return path if relative.startswith("..") else relative
    if text.endswith(_ENDINGS) or os.sep in text:
        raise UsageError(f"{text}: no such file; shipped suites are {', '.join(names())}")
    raise UsageError(f"no suite {text!r}; there are {', '.join(names())}, or name a YAML file")
