"""cnnbench: how fast convolutional networks train on TensorFlow.

Importing this package imports neither TensorFlow nor any network; names are loaded on first use.
"""

from __future__ import annotations

import sys
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
    """Import finder for git checkouts, in which the packages configs, docs, models and
    variable_mgr are next to the folder cnnbench, not inside it.

    In an installation, the packages are inside the folder cnnbench. Python prefers the
    checkout to an installation if the root of the checkout is the working directory.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Finds configs, docs, models and variable_mgr next to the folder cnnbench. See
        `importlib.abc.MetaPathFinder.find_spec`.
        """
        del path, target
        parent, _, last = name.rpartition(".")
        if parent != __name__ or last not in ("configs", "docs", "models", "variable_mgr"):
            return None
        folder = Path(__file__).resolve().parents[1] / last
        return spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )


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


def import_result_views() -> ModuleType:
    """Imports the module that shows results as text, tables and DataFrames. This package may import
    all layers, so classes of lower layers ask it.
    """
    return import_module("cnnbench.judge.notebook")
