"""Environment variables that `cnnbench tune` varies on CPUs, although no flag of a run sets them.

Libraries read these variables when a process starts, so they are part of the environment of each
measured process:

* TF_ENABLE_ONEDNN_OPTS selects whether TensorFlow computes with oneDNN's kernels. This changes
  rounding errors (TensorFlow, `tensorflow/core/util/port.cc`).
* GLIBC_TUNABLES and LD_PRELOAD select how memory is allocated. A training step frees and allocates
  large tensors, and memory that the allocator returned to the kernel costs a page fault for each
  page when it is used again (the GNU C Library manual, "Tunables"; ld.so(8)).
"""

from __future__ import annotations

import functools
import os
import platform
import subprocess
import sys
from collections.abc import Mapping

from cnnbench.machine import cpu
from cnnbench.machine.cpu import ONEDNN, Host

_GLIBC, _PRELOAD = "GLIBC_TUNABLES", "LD_PRELOAD"

VARIABLES = frozenset((ONEDNN, _GLIBC, _PRELOAD))
"""Names of the environment variables that a search may vary."""

# The limits are larger than the memory of the arrays of any network in cnnbench.
_KEPT = (
    "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=17179869184:glibc.malloc.top_pad=268435456"
)
_HUGE = (
    "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=4294967296:"
    "glibc.malloc.trim_threshold=17179869184"
)
_SHORT = {_KEPT: "<kept_memory>", _HUGE: "<huge_pages>"}
_ALLOCATORS = {
    "libtcmalloc_minimal.so.4": "libtcmalloc-minimal4",
    "libjemalloc.so.2": "libjemalloc2",
}
"""Memory allocators that can be loaded in front of the C library, with their Debian packages."""

_TUNABLES_SINCE, _HUGE_SINCE = (2, 26), (2, 35)  # Versions of glibc.
_SECONDS = 10.0


def dimensions(given: Mapping[str, str]) -> list[list[dict[str, str]]]:
    """Returns the settings to try, in dimensions that are combined with each other.

    The variables in `given`, which the user has set, do not vary. The allocators replace each
    other, so they are one dimension.
    """
    allocators = [
        *({_GLIBC: value} for value in _SHORT),
        *({_PRELOAD: name} for name in _ALLOCATORS),
    ]
    # The values that differ from the default of this CPU. Without the variable, older CPUs use
    # oneDNN for matrix products and not for convolutions.
    values = ("0",) if cpu.convolution_kernels(Host()).startswith("onednn") else ("0", "1")
    onednn = [{ONEDNN: value} for value in values]
    return [
        [] if ONEDNN in given else onednn,
        [] if {_GLIBC, _PRELOAD} & set(given) else allocators,
    ]


def short_text(name: str, value: str) -> str:
    """Returns a setting as text for tables: a long value is replaced by its meaning."""
    return f"{name}={_SHORT.get(value, value)}"


def assignments(variables: Mapping[str, str]) -> list[str]:
    """Environment variables as words of a command line, such as "LD_PRELOAD=lib.so"."""
    return [f"{name}={value}" for name, value in variables.items()]


@functools.cache
def why_unusable(name: str, value: str) -> str:
    """Returns why a variable would have no effect on this machine, or "" if it has an effect."""
    if name == _GLIBC:
        return _why_no_tunables(value)
    if name == _PRELOAD and not _is_installed(value):
        return f"{value} is not installed (on Debian and Ubuntu: apt install {_ALLOCATORS[value]})"
    return ""


def _why_no_tunables(value: str) -> str:
    library, text = platform.libc_ver()
    version = tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
    if library != "glibc" or version < _TUNABLES_SINCE:
        return "needs the GNU C library (glibc) 2.26 or later"
    if value != _HUGE:
        return ""
    if version < _HUGE_SINCE:
        return f"needs glibc 2.35 or later, and this is {text}"
    if cpu.os_kernel_settings(Host()).get("transparent_huge_pages") == "never":
        return "the kernel offers no huge pages: transparent_hugepage/enabled is never"
    return ""


def _is_installed(library: str) -> bool:
    """Whether the dynamic linker finds a library with the name in LD_PRELOAD.

    The linker of this interpreter is asked, because libraries of another architecture may be
    installed. If it does not find a library in LD_PRELOAD, it prints a message and goes on.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", ""],
            env={**os.environ, _PRELOAD: library},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and not done.stderr
