"""Commands that start cnnbench: this one again, or the code of another folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import cnnbench

# Without the working directory, whose files must not shadow a package.
_LAUNCH = (
    "import sys; root = sys.argv.pop(1); "
    "sys.path[:] = [path for path in (root, *sys.path) if path]; "
)

COMMAND_LINE = "from cnnbench.cli import entry_point; entry_point()"
"""Code for `launcher` that runs the command line in its arguments."""


def launcher(code: str) -> str:
    """Code for ``python -c`` whose first argument is the folder to import cnnbench from.

    The given code sees the other arguments as sys.argv has them.
    """
    return _LAUNCH + code


def own_checkout() -> str:
    """Checkout of the running cnnbench; "" if it is installed."""
    package = Path(os.path.abspath(cnnbench.__file__)).parent
    return "" if (package / "models").is_dir() else str(package.parent)


def program() -> tuple[str, ...]:
    """Program and first arguments that start this cnnbench again; a command line follows."""
    script = Path(sys.argv[0])
    if script.name == "cnnbench" and script.is_file():
        # With -m a checkout in the working directory would precede the installed package.
        return (sys.executable, str(script.resolve()))
    if sys.argv[0] == "-c":  # a side of an experiment, whose working directory may be any
        return (sys.executable, "-c", launcher(COMMAND_LINE), own_checkout())
    return (sys.executable, "-m", "cnnbench")
