"""Versions of the GPU libraries that this process has loaded, by their own functions.

TensorFlow opens CUDA's libraries by name when it first needs them, NCCL at the first collective.
Their versions may be others than those that it was built with. Nothing is loaded here.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from cnnbench.machine.host import Facts, Host

_Parts: TypeAlias = tuple[int, ...]


def _answer(library: Any, function: str, *arguments: int) -> int:
    """What a function stores at its last argument; OSError if it returns a status other than 0."""
    value = ctypes.c_int()
    status = getattr(library, function)(*arguments, ctypes.byref(value))
    if status:
        raise OSError(f"{function}: status {status}")
    return value.value


def _properties(function: str, library: Any) -> _Parts:
    """libraryPropertyType: MAJOR_VERSION, MINOR_VERSION and PATCH_LEVEL are 0, 1 and 2."""
    return tuple(_answer(library, function, which) for which in range(3))


def _cuda_number(function: str, library: Any) -> _Parts:
    """13.1 is 13010 (CUDA's manual, Version Management)."""
    number = _answer(library, function)
    return number // 1000, number % 1000 // 10


def _nccl_number(library: Any) -> _Parts:
    """2.27.7 is 22707; before 2.9, 2.8.4 was 2804 (NCCL_VERSION in nccl.h)."""
    number = _answer(library, "ncclGetVersion")
    major = 10_000 if number >= 10_000 else 1000
    return number // major, number % major // 100, number % 100


_LIBRARIES: dict[str, tuple[str, Callable[[Any], _Parts]]] = {
    "gpu_driver_cuda": ("libcuda", partial(_cuda_number, "cuDriverGetVersion")),
    "loaded_cudart": ("libcudart", partial(_cuda_number, "cudaRuntimeGetVersion")),
    # libcublas.so asks libcublasLt.so, which belongs to it, but finds TensorFlow's function of this
    # name, which may load a library.
    "loaded_cublas": ("libcublasLt", partial(_properties, "cublasLtGetProperty")),
    # libcudnn.so loads libcudnn_graph.so for an answer, and aborts the process where it is missing.
    "loaded_cudnn": ("libcudnn_graph", partial(_properties, "cudnnGetProperty")),
    "loaded_nccl": ("libnccl", _nccl_number),
}
"""Facts, each with the name of a file before ".so" and the version of such a library."""


def loaded(host: Host) -> Facts:
    """Versions of the loaded libraries; several of a library, in the order of paths, by commas."""
    mapped = host.text("proc/self/maps") or ""
    lines = (line.split(maxsplit=5) for line in mapped.splitlines())
    # The sixth column has the path of what is mapped from a file.
    paths = sorted({fields[5].removesuffix(" (deleted)") for fields in lines if len(fields) > 5})
    found = {}
    for fact, (name, version) in _LIBRARIES.items():
        own = (path for path in paths if os.path.basename(path).partition(".so")[0] == name)
        versions = [text for path in own if (text := _text(path, version))]
        found[fact] = ", ".join(dict.fromkeys(versions))
    return found


def _text(path: str, version: Callable[[Any], _Parts]) -> str | None:
    try:
        # Fails for a file that is mapped, but not as a library.
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD)
        return ".".join(map(str, version(library)))
    except (OSError, AttributeError):  # it lacks the function, or that fails
        return None
