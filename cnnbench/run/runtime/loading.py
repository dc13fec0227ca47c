"""Imports TensorFlow, for a run or for a plug-in, and checks its version.

Plug-ins are loaded while flags are checked. A plug-in module may import TensorFlow, before the run
sets the log level and starts its clock.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.util
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from cnnbench.base import plugins
from cnnbench.base.interrupts import errors_as_interrupts
from cnnbench.base.log_lines import library_output_notices
from cnnbench.errors import BenchmarkError, UsageError, exhausted, informative_line
from cnnbench.run.runtime.native_log import without_info_lines

OLDEST = (2, 18)
"""Major and minor version of TensorFlow before which a run is refused."""

NEWEST_TESTED = (2, 21)
"""Major and minor version of TensorFlow after which a run prints a notice."""

_EAGERLY_LOADED = "keras.src.optimizers"
"""The Keras module that TensorFlow imports when it is imported itself, if Keras is installed."""

_PACKAGE = "tensorflow"
early_import_seconds: list[float] = []
"""Seconds that a plug-in's import of TensorFlow took; empty if no plug-in imported it."""

early_setup: list[Callable[[], contextlib.AbstractContextManager[None]]] = []
"""Functions that return context managers around a plug-in's import of TensorFlow.

They configure TensorFlow.
"""


def load_tensorflow() -> Any:
    """Imports TensorFlow fast (see `faster_tensorflow_import`), and returns the module.

    Raises:
      BenchmarkError: TensorFlow is missing, broken or too old.
      UsageError: the flags of a run with a plug-in are wrong, which `early_setup` found.
      KeyboardInterrupt: a signal arrived during the import. Native modules would turn it into an
        ImportError.
    """
    try:
        with errors_as_interrupts(), faster_tensorflow_import():
            import tensorflow as tf
    except UsageError:
        raise
    except Exception as error:  # If memory is short, any type of error can occur.
        reason = exhausted(error) or informative_line(error)
        raise BenchmarkError(f"TensorFlow cannot be imported: {reason}") from error
    _mark_variables()
    _prefix_log_lines(tf)
    if _version(tf) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise BenchmarkError(
            f"TensorFlow {tf.__version__} is installed; cnnbench needs at least {oldest}"
        )
    return tf


def _prefix_log_lines(tf: Any) -> None:
    """Turns lines that the Python code of TensorFlow and Keras logs into notices of cnnbench."""
    handlers = [*tf.get_logger().handlers]
    # Keras logs with absl, whose logger has no handler unless a program has configured logging.
    # absl itself creates the logger, because it is of a special class.
    if "absl.logging" in sys.modules and not logging.root.handlers:
        absl = logging.getLogger("absl")
        if not absl.handlers:
            absl.propagate = False
            absl.addHandler(logging.StreamHandler())
            handlers += absl.handlers
    for handler in handlers:
        handler.setFormatter(_NoticeFormatter(logging.BASIC_FORMAT))


class _NoticeFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return library_output_notices(super().format(record)).removesuffix("\n")


MADE_AT = "_cnnbench_made_at"
"""Attribute of a variable that a plug-in creates: its file, line and function."""


@functools.cache
def _mark_variables() -> None:
    """Marks variables that plug-ins create from now on with the code location (`MADE_AT`).

    TensorFlow keeps a creator of variables for one thread and one default graph, which Keras'
    `clear_session` replaces. So each block that runs code of a plug-in has its own scope.
    """
    import tensorflow as tf

    def create_noted(create: Callable[..., Any], **arguments: Any) -> Any:
        variable = create(**arguments)
        with contextlib.suppress(AttributeError):
            setattr(variable, MADE_AT, plugins.calling_plugin_location())
        return variable

    plugins.add_plugin_code_context(lambda: tf.variable_creator_scope(create_noted))


@contextlib.contextmanager
def without_gc() -> Iterator[None]:
    """A context without Python's garbage collection, which would pause the code in it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def faster_tensorflow_import() -> Iterator[None]:
    """A context in which an import of TensorFlow takes half the time.

    Keras is not imported, nor are scikit-learn, Matplotlib and pandas, which Keras imports.
    TensorFlow imports Keras at the first use of ``tf.keras``. Garbage collection is disabled in the
    block. Later collections omit the 400,000 imported objects, which live as long as the process;
    this shortens tracing, and the pauses in timed loops.
    """
    first = not hasattr(sys.modules.get("tensorflow"), "__version__")
    hides = _EAGERLY_LOADED not in sys.modules
    with without_gc():
        if hides:
            sys.modules[_EAGERLY_LOADED] = None  # type: ignore[assignment]
        try:
            yield
        finally:
            if hides:
                del sys.modules[_EAGERLY_LOADED]
            if first:
                gc.freeze()


def _version(tf: Any) -> tuple[int, ...]:
    return tuple(map(int, tf.__version__.split(".")[:2]))


def untested_version_notices(tf: Any) -> tuple[str, ...]:
    """Returns a notice if TensorFlow is newer than all versions with which cnnbench was tested."""
    if _version(tf) <= NEWEST_TESTED:
        return ()
    newest = ".".join(map(str, NEWEST_TESTED))
    return (f"TensorFlow {tf.__version__} is newer than {newest}, the newest tested",)


def hook_early_import() -> None:
    """Makes an import of TensorFlow by a plug-in faster, filters its output, and times it."""
    hooked = any(isinstance(finder, _TensorFlowFinder) for finder in sys.meta_path)
    if _PACKAGE not in sys.modules and not hooked:
        sys.meta_path.insert(0, _TensorFlowFinder())


class _TensorFlowFinder(MetaPathFinder):
    """A finder on `sys.meta_path` that finds TensorFlow once, and measures its import."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _PACKAGE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            # Only a method of the loader is replaced, because TensorFlow finds its own files with
            # the loader.
            execute = partial(_timed_import, spec.loader.exec_module)
            spec.loader.exec_module = execute  # type: ignore[method-assign]
        return spec


def _timed_import(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Imports TensorFlow for a plug-in, with the settings of this process. Records the time."""
    # `set_environment` will set TF_CPP_MIN_LOG_LEVEL to the same value, so both cases print the
    # same lines.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    start = time.perf_counter()
    try:
        # The filter also covers the configuration of the devices, which prints informational lines
        # at the end of the stack.
        with without_info_lines(), contextlib.ExitStack() as stack:
            for enter in early_setup:
                stack.enter_context(enter())
            with faster_tensorflow_import():
                execute(module)
                if not early_setup:
                    # This command only plans a run, so it must not occupy GPUs.
                    module.config.set_visible_devices([], "GPU")
            _mark_variables()
            _prefix_log_lines(module)
    finally:
        early_import_seconds.append(time.perf_counter() - start)
