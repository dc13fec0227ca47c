"""Reads the properties of hardware and software, such as versions, that the record of a run
contains (facts).

TensorFlow opens CUDA's libraries when it first needs them, and NCCL at the first collective. Their
versions may differ from those with which TensorFlow was built. This module reads the versions of
loaded libraries, but loads none.

Records contain only environment variables on an allow-list, because others may contain secrets. A
whole prefix is on the list only if no other software uses it. For example, ``TF_`` is not on the
list: Terraform uses ``TF_VAR_`` and ``TF_TOKEN_`` for passwords. ``NVIDIA_`` is not on the list
because of ``NVIDIA_API_KEY``.

If a property cannot be read, it is left out; no exception is raised. This module does not import
TensorFlow. If a run has imported TensorFlow, its properties are included.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from cnnbench import version as own
from cnnbench.machine import cpu, gpu, repository
from cnnbench.machine.cpu import Fact, FactGroup, Facts, Host, read_facts

# Versions of loaded GPU libraries are read by calling functions of these libraries.

_Parts: TypeAlias = tuple[int, ...]


def _call(library: Any, function: str, *arguments: int) -> int:
    """Calls a C function that stores its result in its last argument. Raises OSError if the
    function does not return 0.
    """
    value = ctypes.c_int()
    status = getattr(library, function)(*arguments, ctypes.byref(value))
    if status:
        raise OSError(f"{function}: status {status}")
    return value.value


def _property_version(function: str, library: Any) -> _Parts:
    """Reads the version of a CUDA library. The C function `function` returns major version, minor
    version and patch level as the properties 0 to 2.
    """
    return tuple(_call(library, function, which) for which in range(3))


def _cuda_version(function: str, library: Any) -> _Parts:
    """Decodes CUDA's version number: 13010 is version 13.1 (CUDA's manual, Version Management)."""
    number = _call(library, function)
    return number // 1000, number % 1000 // 10


def _nccl_version(library: Any) -> _Parts:
    """Decodes NCCL's version number (nccl.h): 22707 is 2.27.7; before 2.9, 2804 is 2.8.4."""
    number = _call(library, "ncclGetVersion")
    major = 10_000 if number >= 10_000 else 1000
    return number // major, number % major // 100, number % 100


_LIBRARIES: dict[str, tuple[str, Callable[[Any], _Parts]]] = {
    "gpu_driver_cuda": ("libcuda", partial(_cuda_version, "cuDriverGetVersion")),
    "loaded_cudart": ("libcudart", partial(_cuda_version, "cudaRuntimeGetVersion")),
    # The version of cuBLAS is read from libcublasLt.so, which has the same version: for
    # libcublas.so, TensorFlow's wrapper would be called, which may load a library.
    "loaded_cublas": ("libcublasLt", partial(_property_version, "cublasLtGetProperty")),
    # The version of cuDNN is read from libcudnn_graph.so, if that is loaded: a call of libcudnn.so
    # would load it, or abort the process if it is missing.
    "loaded_cudnn": ("libcudnn_graph", partial(_property_version, "cudnnGetProperty")),
    "loaded_nccl": ("libnccl", _nccl_version),
}
"""Recorded names of versions, each with the name of the library file before ".so", and the
function that reads the version from this library.
"""


def loaded_library_versions(host: Host) -> Facts:
    """Reads the versions of the GPU libraries that this process has loaded.

    If a library is loaded several times, versions are joined with commas, in the order of paths.
    """
    mapped = host.read_text("proc/self/maps") or ""
    texts_by_fact: dict[str, list[str]] = {}
    # Each line of /proc/self/maps ends with the path of a file that is mapped into memory.
    for mapping in sorted(set(re.findall("/.*", mapped))):
        path = mapping.removesuffix(" (deleted)")
        library = os.path.basename(path).partition(".so")[0]
        for fact, (name, version) in _LIBRARIES.items():
            if name == library and (text := _loaded_version(path, version)):
                texts_by_fact.setdefault(fact, []).append(text)
    return {fact: ", ".join(dict.fromkeys(versions)) for fact, versions in texts_by_fact.items()}


def _loaded_version(path: str, version: Callable[[Any], _Parts]) -> str | None:
    try:
        # This call fails if the file is mapped into memory, but not as a library.
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD)
        return ".".join(map(str, version(library)))
    except (OSError, AttributeError):  # No version function, or it failed.
        return None


# Functions that read versions of software, and environment variables that affect speed.

XLA_CACHE = "--tf_xla_persistent_cache_directory="
"""The option in TF_XLA_FLAGS that sets the folder of --xla_cache_dir."""

_TENSORFLOW_PACKAGES = (
    "tensorflow",
    "tensorflow-cpu",
    "tf-nightly",
    "tensorflow-rocm",
    "intel-tensorflow",
)
_NAMES = frozenset(
    """
    CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER CUDA_CACHE_DISABLE CUDA_LAUNCH_BLOCKING
    CUDA_MODULE_LOADING NVIDIA_VISIBLE_DEVICES NVIDIA_TF32_OVERRIDE ROCR_VISIBLE_DEVICES
    HIP_VISIBLE_DEVICES TF_CONFIG TF_DETERMINISTIC_OPS TF_AUTOTUNE_THRESHOLD TF_SYNC_ON_FINISH
    GLIBC_TUNABLES LD_PRELOAD PYTHONHASHSEED PYTHONOPTIMIZE
    """.split()
)
_PREFIXES = tuple(
    """
    TF_CPP_ TF_CUDNN_ TF_DISABLE_ TF_ENABLE_ TF_FORCE_ TF_GPU_ TF_LAYOUT_ TF_MKL_
    TF_NUM_ TF_ONEDNN_ TF_USE_ TF_XLA_ DNNL_ GOMP_ KMP_ MALLOC_ MKL_ NCCL_ OMP_ ONEDNN_
    XLA_ HOROVOD_ OMPI_
    """.split()
)
# "TRANSPORTS" is in this list because OMPI_MCA_orte_precondition_transports contains the secret key
# of an Open MPI job.
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSW", "CREDENTIAL", "AUTH", "TRANSPORTS")
_MAX_LENGTH = 1000
# Matches a path within the value of a variable, such as in XLA_FLAGS="--xla_dump_to=DIR": paths
# differ between equal runs.
_PLACE = re.compile(
    r"(--?\w+_(?:to|from|dir|directory|path|file|prefix)=)(?:\"[^\"]*\"|'[^']*'|\S+)"
)
_PLACE_NAME = re.compile("_(FILE|FILENAME|DIR|DIRECTORY|PATH)$")


def python_version(host: Host) -> Facts:
    """Reads the version and the implementation of Python."""
    return {
        "python_version": platform.python_version(),
        "python_implementation": platform.python_implementation(),
    }


def package_versions(host: Host) -> Facts:
    """Reads the versions of cnnbench, TensorFlow, Keras and NumPy, and the name of the installed
    TensorFlow package.
    """
    tensorflow = next(
        ((name, version) for name in _TENSORFLOW_PACKAGES if (version := _package_version(name))),
        (None, None),
    )
    return {
        "cnnbench_version": own.__version__,
        "tensorflow_package": tensorflow[0],
        "tensorflow_version": tensorflow[1],
        "keras_version": _package_version("keras") or _package_version("keras-nightly"),
        "numpy_version": _package_version("numpy"),
    }


def tensorflow_build_facts(host: Host) -> Facts:
    """Reads how TensorFlow was built, such as its compiler. Empty if it is not imported."""
    tf: Any = host.modules.get("tensorflow")
    if tf is None:
        return {}
    build = tf.sysconfig.get_build_info()
    return {
        "tensorflow_version": tf.version.VERSION,
        "tensorflow_git_version": tf.version.GIT_VERSION,
        "tensorflow_compiler": tf.version.COMPILER_VERSION,
        "tensorflow_cuda_build": bool(build.get("is_cuda_build")),
        "tensorflow_rocm_build": True if build.get("is_rocm_build") else None,
        "tensorflow_tensorrt_build": True if build.get("is_tensorrt_build") else None,
        "cuda_version": build.get("cuda_version"),
        "cudnn_version": build.get("cudnn_version"),
    }


def tensorflow_thread_counts(host: Host) -> Facts:
    """Reads the numbers of threads that are set in TensorFlow. Empty if this process has not
    imported TensorFlow.

    Counts that TensorFlow chooses are left out.
    """
    tf: Any = host.modules.get("tensorflow")
    if tf is None:
        return {}
    return {
        "intra_op_threads": tf.config.threading.get_intra_op_parallelism_threads() or None,
        "inter_op_threads": tf.config.threading.get_inter_op_parallelism_threads() or None,
    }


def cnnbench_commit(host: Host) -> Facts:
    """Reads the commit of the git checkout from which cnnbench runs or was built, and whether and
    how its files differ from the commit.
    """
    subject = repository.cnnbench_checkout()
    return {
        "git_commit": subject.revision,
        "git_dirty": subject.dirty,
        "git_changes": subject.changes,
        "git_unknown": subject.unknown,
    }


def may_record_variable(variable: str) -> bool:
    """Whether records may contain a variable: it must affect speed, and must not be a secret."""
    listed = variable in _NAMES or variable.startswith(_PREFIXES)
    return listed and not any(word in variable.upper() for word in _SECRET)


def environment_facts(host: Host) -> Facts:
    """Reads the environment variables that records may contain, as properties with names such as
    env_TF_XLA_FLAGS. See `may_record_variable`.

    The option with the folder of --xla_cache_dir is removed from TF_XLA_FLAGS.
    """
    facts = {}
    for name, value in sorted(host.environ.items()):
        words = [word for word in value.split() if not word.startswith(XLA_CACHE)]
        only_a_place = value.strip() and not words
        if may_record_variable(name) and not only_a_place:
            facts[f"env_{name}"] = " ".join(words)[:_MAX_LENGTH]
    return facts


def comparable_fact(name: str, value: Any) -> Any:
    """Prepares a recorded property for the comparison of two runs: in environment variables,
    replaces paths by "...".
    """
    if not name.startswith("env_") or not value:
        return value
    return "..." if _PLACE_NAME.search(name) else _PLACE.sub(r"\1...", str(value))


GROUPS: tuple[FactGroup, ...] = (
    python_version,
    package_versions,
    tensorflow_build_facts,
    tensorflow_thread_counts,
    cnnbench_commit,
)


def _package_version(package: str) -> str | None:
    # Imported late, because this takes 10 ms and most commands need no facts.
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


# Functions that collect all recorded properties of machine and software.

SECTIONS: tuple[tuple[str, tuple[FactGroup, ...]], ...] = (
    ("Machine", cpu.GROUPS),
    ("GPUs", (*gpu.GROUPS, loaded_library_versions)),
    ("Software", GROUPS),
    ("Environment variables", (environment_facts,)),
)
"""Titles of sections, each with the functions that read its properties."""


def collect(host: Host | None = None) -> dict[str, Fact]:
    """Reads all recorded properties of machine and software by name, except unreadable ones."""
    groups = [group for _, of_section in SECTIONS for group in of_section]
    return read_facts(groups, Host() if host is None else host)


def collect_facts_by_section(host: Host | None = None) -> dict[str, dict[str, Fact]]:
    """Reads all recorded properties of machine and software, grouped by the titles in `SECTIONS`.

    Sections without properties are left out.
    """
    host = Host() if host is None else host
    gathered = ((title, read_facts(groups, host)) for title, groups in SECTIONS)
    return {title: facts for title, facts in gathered if facts}


def with_loaded_libraries(facts: Mapping[str, Fact]) -> dict[str, Fact]:
    """Returns `facts` with the versions of all GPU libraries that are loaded by now."""
    return {**facts, **read_facts((loaded_library_versions,), Host())}
