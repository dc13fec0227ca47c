"""One side of an experiment: how a process of it is started."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import cnnbench

# The working directory is kept off the path: what lies there must not shadow a package.
_LAUNCH = (
    "import sys; root = sys.argv.pop(1); "
    "sys.path[:] = [path for path in (root, *sys.path) if path]; "
)
_RUN = "from cnnbench.cli import entry_point; entry_point()"


@dataclass(frozen=True, kw_only=True)
class Side:
    """What is started.

    Attributes:
      flags: of ``cnnbench run``, common ones included.
      own: the flags that are this side's own.
      python: an interpreter, absolute; the one that runs this if None.
      checkout: folder that the process works in; if it is a checkout of cnnbench, its code
        is what runs.
      revision: how the user named the checkout.
      variables: environment variables, added to those of this process.
    """

    flags: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    python: str | None = None
    checkout: Path | None = None
    revision: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_this_cnnbench(self) -> bool:
        """Whether the code that runs is that of this process, so that flags can be checked."""
        return self.python is None and not self._holds_cnnbench()

    def command(self, record: Path) -> tuple[str, ...]:
        """Program and arguments of a process that writes its record to a file."""
        python = self.python or sys.executable
        flags = (*self.flags, f"--result_json={record}")
        return (python, "-c", launcher(_RUN), self._root(), "run", *flags)

    def description(self) -> str:
        """What is this side's own, in a line; values of variables are not told."""
        parts = [shlex.join(self.own)] if self.own else []
        parts += [f"python {self.python}"] if self.python else []
        parts += [f"checkout {self.revision or self.checkout}"] if self.checkout else []
        parts += [f"variable {name}" for name in self.variables]
        return ", ".join(parts) or "nothing of its own"

    def _root(self) -> str:
        """The folder that cnnbench is to be imported from; "" for what is installed."""
        if self._holds_cnnbench():
            return str(self.checkout)
        return "" if self.python is not None else own_checkout()

    def _holds_cnnbench(self) -> bool:
        return self.checkout is not None and (self.checkout / "cnnbench" / "__init__.py").is_file()


def launcher(code: str) -> str:
    """Code for ``python -c`` whose first argument is the folder to import cnnbench from.

    Args:
      code: what follows; sees the other arguments as sys.argv has them.
    """
    return _LAUNCH + code


def own_checkout() -> str:
    """The checkout that this process runs cnnbench from; "" if it is installed."""
    package = Path(os.path.abspath(cnnbench.__file__)).parent
    return "" if (package / "models").is_dir() else str(package.parent)
