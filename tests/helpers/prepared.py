"""Prepares TensorFlow when a test first imports it; tests of text never do, and start at once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from forked import shorten_runs

from cnnbench.run.runtime.loading import faster_tensorflow_import
from cnnbench.run.runtime.native_log import without_info_lines

_PACKAGE = "tensorflow"


def preparing_tensorflow(devices: int) -> None:
    """Has the first import of TensorFlow make so many logical CPU devices, and shorten runs.

    The devices have to exist before TensorFlow initialises. Keras, which takes the longer part of
    an import, is not imported.
    """
    sys.meta_path.insert(0, _Finder(devices))


class _Finder(MetaPathFinder):
    """Finds TensorFlow until it is imported, and prepares it then."""

    def __init__(self, devices: int) -> None:
        self._devices = devices

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _PACKAGE:
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            # The loader itself is not replaced, because TensorFlow finds its files with it.
            execute = partial(self._import, spec.loader.exec_module)
            spec.loader.exec_module = execute  # type: ignore[method-assign]
        return spec

    def _import(self, execute: Callable[[ModuleType], None], tf: ModuleType) -> None:
        sys.meta_path.remove(self)
        with without_info_lines(), faster_tensorflow_import():
            execute(tf)
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0],
            [tf.config.LogicalDeviceConfiguration()] * self._devices,
        )
        tf.config.set_soft_device_placement(False)
        shorten_runs()


def stop_collecting_graphs() -> None:
    """Ends what `tf.summary.trace_on` begins: `trace_off` does not, in TensorFlow 2.21.

    The graphs of all later tests would be kept, and written by the next test that collects some.
    """
    if _PACKAGE in sys.modules:
        from tensorflow.python.eager import context  # noqa: TID251 (there is no public function)

        context.context().disable_graph_collection()
