"""Quiet and timed import of TensorFlow by plug-ins.

Plug-ins are loaded while flags are checked. One that imports TensorFlow at the top does so before
the run sets the log level and starts its clock.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from cnnbench.run.runtime.loading import quick_import
from cnnbench.run.runtime.native import without_info_lines

_PACKAGE = "tensorflow"
_seconds: list[float] = []


def watch() -> None:
    """Prepares for an import of TensorFlow by plug-in code."""
    if _PACKAGE not in sys.modules and not any(isinstance(one, _Finder) for one in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def seconds() -> float:
    """Seconds that an import by a plug-in took; 0 if there was none."""
    return sum(_seconds)


class _Finder(MetaPathFinder):
    """Finds TensorFlow by the other finders, once, and wraps its loader."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _PACKAGE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # TensorFlow looks at its own loader, such as for the files of its package.
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # as a run sets it
        start = time.perf_counter()
        try:
            with without_info_lines(), quick_import():
                self._loader.exec_module(module)
        finally:
            _seconds.append(time.perf_counter() - start)
