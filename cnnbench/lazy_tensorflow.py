"""TensorFlow, which is imported when one of its names is used first.

Modules that commands import before a run is planned use it instead of TensorFlow, so that
``--help`` and errors in flags do not wait for TensorFlow.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """Imports TensorFlow, and returns its attribute `name`. AttributeError if there is none."""
    if name.startswith("__") and name != "__version__":  # Python looks for these in every module.
        raise AttributeError(name)
    import tensorflow

    return getattr(tensorflow, name)
