"""Import of TensorFlow and check of its version."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator
from typing import Any

from cnnbench.errors import BenchmarkError, exhausted, first_line

OLDEST = (2, 18)

NEWEST_TESTED = (2, 21)
"""Major and minor version of TensorFlow; newer ones get a notice, those before OLDEST an error."""

_EAGERLY_LOADED = "keras.src.optimizers"
"""The part of Keras that TensorFlow imports by itself, if it can."""


def load_tensorflow() -> Any:
    """Imports TensorFlow by `quick_import`; BenchmarkError if it is missing, broken or too old."""
    try:
        with quick_import():
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
def quick_import() -> Iterator[None]:
    """Halves the time of an import of TensorFlow in the block.

    Keras is left out, with scikit-learn, Matplotlib and pandas, which it imports: TensorFlow
    imports it on the first use of ``tf.keras``. Garbage collection is off meanwhile, and the
    imported objects, 400,000 that live as long as the process, are exempt from later collections,
    which shortens tracing and pauses in timed loops.
    """
    first = not hasattr(sys.modules.get("tensorflow"), "__version__")
    collects, hides = gc.isenabled(), _EAGERLY_LOADED not in sys.modules
    gc.disable()
    if hides:
        sys.modules[_EAGERLY_LOADED] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if hides:
            del sys.modules[_EAGERLY_LOADED]
        if first:
            gc.freeze()
        if collects:
            gc.enable()


def _version(tf: Any) -> tuple[int, ...]:
    return tuple(int(part) for part in tf.__version__.split(".")[:2])


def untested_notices(tf: Any) -> tuple[str, ...]:
    """A notice if TensorFlow is newer than the tested versions."""
    if _version(tf) <= NEWEST_TESTED:
        return ()
    newest = ".".join(map(str, NEWEST_TESTED))
    return (f"TensorFlow {tf.__version__} is newer than {newest}, the newest tested",)
