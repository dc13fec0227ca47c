"""Versions of Python, TensorFlow and its build, and cnnbench with its commit."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from cnnbench import version as own
from cnnbench.machine.git import git
from cnnbench.machine.host import FactGroup, Facts, Host

_TENSORFLOW_PACKAGES = (
    "tensorflow",
    "tensorflow-cpu",
    "tf-nightly",
    "tensorflow-rocm",
    "intel-tensorflow",
)


def python(host: Host) -> Facts:
    """Version and implementation of Python."""
    return {
        "python_version": platform.python_version(),
        "python_implementation": platform.python_implementation(),
    }


def packages(host: Host) -> Facts:
    """Installed versions; TensorFlow's also names the package it came in."""
    tensorflow = next(
        ((name, version) for name in _TENSORFLOW_PACKAGES if (version := _version(name))),
        (None, None),
    )
    return {
        "cnnbench_version": own.__version__,
        "tensorflow_package": tensorflow[0],
        "tensorflow_version": tensorflow[1],
        "keras_version": _version("keras"),
        "numpy_version": _version("numpy"),
    }


def tensorflow_build(host: Host) -> Facts:
    """Build information of the loaded TensorFlow."""
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


def tensorflow_threads(host: Host) -> Facts:
    """Thread counts set in the loaded TensorFlow; absent where it chooses itself."""
    tf: Any = host.modules.get("tensorflow")
    if tf is None:
        return {}
    return {
        "intra_op_threads": tf.config.threading.get_intra_op_parallelism_threads() or None,
        "inter_op_threads": tf.config.threading.get_inter_op_parallelism_threads() or None,
    }


_STATUS = ("status", "--porcelain", "--untracked-files=no")


def commit(host: Host) -> Facts:
    """Commit of the checkout that cnnbench runs from, and whether files differ from it."""
    checkout = Path(own.__file__).resolve().parent.parent
    if not (checkout / ".git").exists():
        return {}
    return {
        "git_commit": git("rev-parse", "HEAD", folder=checkout, timeout=2),
        "git_dirty": git(*_STATUS, folder=checkout, timeout=2) != "",
    }


GROUPS: tuple[FactGroup, ...] = (python, packages, tensorflow_build, tensorflow_threads, commit)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
