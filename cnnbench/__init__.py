"""cnnbench: how fast convolutional networks train on TensorFlow.

Importing this package imports neither TensorFlow nor any network; the names
below are loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cnnbench.benchmark_cnn import BenchmarkCNN
    from cnnbench.params import Params
    from cnnbench.record import RunRecord

__version__ = "0.1.0"

__all__ = ["BenchmarkCNN", "Params", "RunRecord", "__version__"]

_HOME = {
    "BenchmarkCNN": "cnnbench.benchmark_cnn",
    "Params": "cnnbench.params",
    "RunRecord": "cnnbench.record",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
