"""Command lines that start this cnnbench, or another one, in a new process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import cnnbench

# Removes the working directory from sys.path, because its files could shadow a package.
_LAUNCH = (
    "import sys; root = sys.argv.pop(1); "
    "sys.path[:] = [path for path in (root, *sys.path) if path]; "
)

COMMAND_LINE = "from cnnbench.__main__ import entry_point; entry_point()"
"""Code for `launcher_code` that runs cnnbench with the command line in sys.argv."""


def launcher_code(code: str) -> str:
    """Extends `code` for ``python -c``: the first argument must be the folder that contains
    cnnbench.

    The extended code adds this folder to sys.path, and `code` finds the remaining arguments in
    sys.argv.
    """
    return _LAUNCH + code


def own_checkout() -> str:
    """Folder of the source checkout from which this cnnbench runs; "" if cnnbench runs from an
    installed package.
    """
    package = Path(os.path.abspath(cnnbench.__file__)).parent
    return "" if (package / "models").is_dir() else str(package.parent)


def own_command_prefix() -> tuple[str, ...]:
    """The first words of a command line that starts the cnnbench of this process again.

    The cnnbench command and its flags are appended to these words.
    """
    script = Path(sys.argv[0])
    if script.name == "cnnbench" and script.is_file():
        # With -m, a checkout in the working directory would shadow the installed package.
        return (sys.executable, str(script.resolve()))
    # If `launcher_code` started this process, the working directory may contain other code.
    if sys.argv[0] == "-c":
        return (sys.executable, "-c", launcher_code(COMMAND_LINE), own_checkout())
    return (sys.executable, "-m", "cnnbench")
