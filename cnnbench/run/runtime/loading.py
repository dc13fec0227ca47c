"""Import of TensorFlow and check of its version."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator
from typing import Any

from cnnbench.errors import BenchmarkError, exhausted, first_line
from cnnbench.run.runtime import supervisor

OLDEST = (2, 18)

NEWEST_TESTED = (2, 21)
"""Versions of TensorFlow, major and minor: an older one is refused, a newer one gets a notice."""


def load_tensorflow() -> Any:
    """Imports TensorFlow without packages that Keras imports and no run uses.

    This saves a quarter of the import time (scikit-learn) and a fifth of the memory. The packages
    can be imported afterwards, but Keras continues without them; use it only where no other code
    uses Keras.

    Returns:
      The module.

    Raises:
      BenchmarkError: it is missing, broken or too old.
    """
    try:
        hidden = _OF_KERAS if supervisor.is_program() else ()
        with _hidden(*hidden), without_collections():
            import tensorflow as tf
    except Exception as error:  # where memory is short, any
        reason = exhausted(error) or first_line(error)
        raise BenchmarkError(f"TensorFlow cannot be imported: {reason}") from error
    if _version(tf) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise BenchmarkError(
            f"TensorFlow {tf.__version__} is installed; cnnbench needs at least {oldest}"
        )
    return tf


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """A block that imports TensorFlow, without garbage collections, which take a fifth of its time.

    What it imports, half a million objects, stays as long as the process, and is exempt from later
    collections: that makes the tracing of a step shorter, and pauses in timed loops.
    """
    first = not hasattr(sys.modules.get("tensorflow"), "__version__")
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if first:
            gc.freeze()
        if collects:
            gc.enable()


def _version(tf: Any) -> tuple[int, ...]:
    """Major and minor version."""
    return tuple(int(part) for part in tf.__version__.split(".")[:2])


def untested_notices(tf: Any) -> tuple[str, ...]:
    """A notice if TensorFlow is newer than the tested versions."""
    if _version(tf) <= NEWEST_TESTED:
        return ()
    newest = ".".join(map(str, NEWEST_TESTED))
    return (f"TensorFlow {tf.__version__} is newer than {newest}, the newest tested",)


_OF_KERAS = ("sklearn", "matplotlib", "pandas")


@contextlib.contextmanager
def _hidden(*packages: str) -> Iterator[None]:
    """Makes imports of packages fail as if they were not installed, unless they are loaded."""
    hidden = [name for name in packages if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
