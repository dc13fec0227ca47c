"""cnnbench: how fast convolutional networks train on TensorFlow.

Importing this package imports neither TensorFlow nor any network; names are loaded on first use.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cnnbench.version import __version__

if TYPE_CHECKING:
    from cnnbench.flags import Params
    from cnnbench.records.run import RunRecord
    from cnnbench.run.driver.benchmark_cnn import BenchmarkCNN
    from cnnbench.run.driver.console import Console

__all__ = ["BenchmarkCNN", "Console", "Params", "RunRecord", "__version__"]


class _CheckoutFinder:
    """Import finder for git checkouts, in which the packages configs, models and variable_mgr are
    next to the folder cnnbench, not inside it.

    In an installation, the three packages are inside the folder cnnbench. Python prefers the
    checkout to an installation if the root of the checkout is the working directory.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Finds configs, models and variable_mgr next to the folder cnnbench. See
        `importlib.abc.MetaPathFinder.find_spec`.
        """
        del path, target
        parent, _, last = name.rpartition(".")
        if parent != __name__ or last not in ("configs", "models", "variable_mgr"):
            return None
        folder = Path(__file__).resolve().parents[1] / last
        return spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )


_MOVED = {
    "cnnbench.data.arrays": "cnnbench.data.pipeline",
    "cnnbench.data.findings": "cnnbench.data.folder",
    "cnnbench.data.position": "cnnbench.data.pipeline",
    "cnnbench.judge.report.tables": "cnnbench.judge.report.exports",
    "cnnbench.variable_mgr.all_reduce.cost": "cnnbench.variable_mgr.all_reduce.spec",
    "cnnbench.variable_mgr.tower_variable": "cnnbench.variable_mgr.towers",
}
"""Public modules of 1.0.0 that were merged into others: their names work until version 2."""


class _RenamedModuleFinder:
    """Import finder for the old module names in `_MOVED`. The import of an old name prints a
    warning.

    The imported module has all names of the module that replaced it.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Finds a module by the old name. See `importlib.abc.MetaPathFinder.find_spec`."""
        del path, target
        return ModuleSpec(name, _RenamedModuleFinder) if name in _MOVED else None  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: ModuleSpec) -> ModuleType:
        """Creates a module that forwards all attributes to the renamed module. See
        `importlib.abc.Loader`.
        """
        new = _MOVED[spec.name]
        warnings.warn(f"{spec.name} is now {new}", DeprecationWarning, stacklevel=2)
        module = ModuleType(spec.name, f"The names of `{new}`.")
        vars(module)["__getattr__"] = lambda name: getattr(import_module(new), name)
        return module

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """Does nothing: `create_module` returns a complete module. See `importlib.abc.Loader`."""


sys.meta_path.append(_RenamedModuleFinder)
if not (Path(__file__).parent / "models").is_dir():
    sys.meta_path.insert(0, _CheckoutFinder)

_MODULE_OF_NAME = {
    "BenchmarkCNN": "cnnbench.run.driver.benchmark_cnn",
    "Console": "cnnbench.run.driver.console",
    "Params": "cnnbench.flags",
    "RunRecord": "cnnbench.records.run",
}


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF_NAME:
        return getattr(import_module(_MODULE_OF_NAME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
