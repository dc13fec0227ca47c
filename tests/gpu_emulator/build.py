"""Builds the GPU emulator for the TensorFlow of this interpreter, and says how to load it.

    python build.py              prints the path of the library, building it if need be
    python build.py N COMMAND... runs a command on N emulated GPUs

Libraries are kept in the checkout's ``build/gpu_emulator``, in a folder per version of TensorFlow,
compiler and sources. A build takes half a minute on two cores. README.md describes the emulator.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / "build" / "gpu_emulator"
MOST_GPUS = 16

_COMPILER = ("g++", "-std=c++17", "-O1", "-fPIC", "-Wall", "-fvisibility=hidden")
_DEFINES = ("_GLIBCXX_USE_CXX11_ABI=1", "EIGEN_MAX_ALIGN_BYTES=64", "NDEBUG")
_TOGETHER = ("host_kernels.cc", "host_nccl.cc", "host_tensor.cc")
"""Sources that are compiled as one: the headers of TensorFlow's kernels take most of the time."""


_ADDS = """
import sys
sys.modules["keras.src.optimizers"] = None  # Keras takes the longer part of an import
import tensorflow as tf
with tf.device("GPU:0"):
    total = tf.constant(1.0) + 1.0
if "GPU:0" not in total.device or float(total) != 2.0:
    raise SystemExit("TensorFlow does not use it")
"""


class UnavailableError(Exception):
    """The emulator cannot be built or loaded here; the message is one line that says why."""


@functools.cache
def library() -> Path:
    """The emulator for the installed TensorFlow; built on the first call.

    Raises:
      UnavailableError: there is no compiler, it fails, or TensorFlow does not load the result.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise UnavailableError("GPUs are emulated on Linux on x86_64 only")
    found = importlib.util.find_spec("tensorflow")
    if found is None or not found.submodule_search_locations:
        raise UnavailableError("TensorFlow is not installed")
    if shutil.which("g++") is None:
        raise UnavailableError("emulated GPUs need the C++ compiler g++, which is not installed")
    tensorflow = Path(found.submodule_search_locations[0])
    sources = [*sorted(HERE.glob("*.cc")), *sorted(HERE.glob("*.h"))]
    linked = (tensorflow / "libtensorflow_framework.so.2").stat()  # of this version and wheel
    location = f"{tensorflow} {linked.st_size} {linked.st_mtime_ns}"
    made = CACHE / _key("tensorflow", location, sources) / "hostgpu.so"
    return _once(made, lambda fresh: _build(tensorflow, sources, fresh))


@functools.cache
def management_library() -> Path:
    """The stand-in for NVIDIA's management library; built on the first call, in a second.

    Raises:
      UnavailableError: the compiler fails.
    """
    sources = [HERE / "nvml" / "nvml.cc"]
    made = CACHE / _key("nvml", "", sources) / "libnvidia-ml.so.1"
    return _once(made, lambda fresh: _run([*_COMPILER, "-shared", *sources, "-o", fresh]))


def environment(gpus: int, **settings: object) -> dict[str, str]:
    """Environment variables with which TensorFlow sees that many emulated GPUs.

    Args:
      settings: of the emulator, without HOSTGPU_ and in lower case; see README.md.

    Raises:
      UnavailableError: see `library`.
    """
    given = {f"HOSTGPU_{name.upper()}": str(value) for name, value in settings.items()}
    # The dynamic linker reads LD_LIBRARY_PATH when a process starts.
    before = os.environ.get("LD_LIBRARY_PATH")
    folders = [str(management_library().parent), *([before] if before else [])]
    paths = [str(HERE / "cards"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "TF_PLUGGABLE_DEVICE_LIBRARY_PATH": str(library()),
        "PYTHONPATH": os.pathsep.join(paths),
        "LD_LIBRARY_PATH": os.pathsep.join(folders),
        "HOSTGPU_COUNT": str(gpus),
        "HOSTGPU_STATE": str(_state()),
        **given,
    }


def _state() -> Path:
    """A folder in which the processes that this one starts, or becomes, share the emulated GPUs."""
    folders = CACHE / "processes"
    own = folders / str(os.getpid())
    own.mkdir(parents=True, exist_ok=True)
    for folder in folders.iterdir():
        if not Path("/proc", folder.name).exists():
            shutil.rmtree(folder, ignore_errors=True)
    return own


def _once(made: Path, build: Callable[[Path], None]) -> Path:
    """A file, built if it does not exist; the function gets the path to write."""
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        with (made.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not made.exists():
                fresh = made.with_suffix(".new")
                build(fresh)
                fresh.rename(made)
    return made


def _key(prefix: str, location: str, sources: list[Path]) -> str:
    """Name of a folder for a library: of all that it depends on."""
    compiler = subprocess.run(["g++", "--version"], capture_output=True, text=True).stdout
    key = hashlib.sha256(f"{location} {compiler} {_COMPILER} {_DEFINES}".encode())
    for source in sources:
        key.update(source.name.encode() + source.read_bytes())
    return f"{prefix}-{key.hexdigest()[:16]}"


def _build(tensorflow: Path, sources: list[Path], fresh: Path) -> None:
    options = [*_COMPILER, *(f"-D{one}" for one in _DEFINES), "-isystem", tensorflow / "include"]

    together = [one for one in sources if one.name in _TOGETHER]
    alone = [[one] for one in sources if one.suffix == ".cc" and one not in together]

    def compiled(unit: list[Path]) -> Path:
        text = fresh.with_name(unit[0].name)
        text.write_text("".join(f'#include "{source}"\n' for source in unit))
        out = text.with_suffix(".o")
        _run([*options, "-c", text, "-o", out])
        return out

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        objects = list(threads.map(compiled, [together, *alone]))
    libraries = ["-l:libtensorflow_cc.so.2", "-l:libtensorflow_framework.so.2"]
    _run(["g++", "-shared", *objects, "-o", fresh, f"-L{tensorflow}", *libraries,
          f"-Wl,-rpath,{tensorflow}"])  # fmt: skip
    # Tests hide GPUs from their own processes.
    one = {"TF_PLUGGABLE_DEVICE_LIBRARY_PATH": str(fresh), "CUDA_VISIBLE_DEVICES": "0"}
    _run([sys.executable, "-c", _ADDS], HOSTGPU_COUNT="1", **one)


def _run(command: list[object], **variables: str) -> None:
    words = [str(word) for word in command]
    # Settings of the command to run on the emulator, such as HOSTGPU_SKIP, are not for its build.
    given = {name: one for name, one in os.environ.items() if not name.startswith("HOSTGPU_")}
    environment = {**given, **variables}
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if "error:" in line.lower()] or lines[-1:]
        why = errors[0].strip()[:200] if errors else f"status {done.returncode}"
        raise UnavailableError(f"emulated GPUs cannot be built or loaded here: {why}")


def main(argv: list[str]) -> int:
    """Prints the library's path, or runs a command; returns the exit status."""
    try:
        if not argv:
            print(library())
            return 0
        if not argv[0].isdigit() or not 1 <= int(argv[0]) <= MOST_GPUS or len(argv) < 2:
            print(f"usage: N COMMAND..., with N from 1 to {MOST_GPUS}", file=sys.stderr)
            return 2
        os.environ.update(environment(int(argv[0])))
    except UnavailableError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        os.execvp(argv[1], argv[1:])
    except OSError as error:
        print(f"{argv[1]}: {error.strerror}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
