"""Thread rules, the environment, and peak memory of the process and of the fullest GPU.

Tests cnnbench/run/runtime/loading.py.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from forked import Forked, cnnbench, finished
from short_runs import NETWORKS

from cnnbench.base.interrupts import begin_command, conclude_command, handling_signals
from cnnbench.errors import BenchmarkError, ExitCode, FlagError
from cnnbench.flags import Params
from cnnbench.machine.facts import XLA_CACHE
from cnnbench.run.runtime.devices import (
    choose_input_threads,
    choose_thread_counts,
    configure_devices,
    read_peak_memory,
    reset_peak_memory,
    set_environment,
)
from cnnbench.run.runtime.loading import load_tensorflow


@pytest.mark.parametrize(
    ("flags", "kind", "cores", "expected"),
    [
        ({}, "cpu", 2, (0, 0)),
        ({}, "cpu", 1, (0, 0)),
        ({"num_gpus": 2}, "cpu", 2, (1, 2)),
        ({"num_gpus": 4}, "cpu", 2, (1, 2)),
        ({"num_gpus": 3}, "cpu", 8, (0, 0)),
        ({"num_gpus": 8}, "cpu", 8, (1, 8)),
        ({"num_intra_threads": 5}, "cpu", 8, (5, 0)),
        ({"num_inter_threads": 3}, "cpu", 8, (0, 3)),
        ({"num_intra_threads": 0}, "cpu", 8, (0, 0)),
        ({}, "gpu", 16, (1, 0)),
        ({"num_intra_threads": 4, "num_inter_threads": 2}, "gpu", 16, (4, 2)),
    ],
)
def test_thread_counts(flags, kind, cores, expected):
    assert choose_thread_counts(Params(**flags), kind, cores) == expected


@pytest.mark.parametrize(
    ("flags", "kind", "expected"),
    [
        ({}, "cpu", 16),
        ({"datasets_num_private_threads": 3}, "cpu", 3),
        ({"datasets_num_private_threads": 0}, "gpu", 0),
        ({"num_gpus": 2}, "gpu", 16 - 2 * 4),
        ({"num_gpus": 8}, "gpu", 1),
        ({"num_gpus": 2, "gpu_thread_mode": "global"}, "gpu", 12),
    ],
)
def test_input_threads(flags, kind, expected, cpus):
    cpus(range(16))
    assert choose_input_threads(Params(**flags), kind) == expected


@pytest.mark.parametrize(
    ("flags", "before", "after"),
    [
        (
            {"autotune_threshold": 2, "winograd_nonfused": False, "use_unified_memory": True},
            {"TF_GPU_THREAD_COUNT": "7"},
            {
                "TF_GPU_THREAD_COUNT": "7",  # as it was given
                "TF_GPU_THREAD_MODE": "gpu_private",
                "TF_AUTOTUNE_THRESHOLD": "2",
                "TF_ENABLE_WINOGRAD_NONFUSED": "0",
                "TF_FORCE_UNIFIED_MEMORY": "1",
                "CUDA_VISIBLE_DEVICES": None,
            },
        ),
        ({}, {}, {"TF_GPU_THREAD_COUNT": "2"}),
        ({"per_gpu_thread_count": 3}, {}, {"TF_GPU_THREAD_COUNT": "3"}),
        ({"device": "cpu"}, {}, {"CUDA_VISIBLE_DEVICES": ""}),
        ({"xla": True}, {}, {"TF_XLA_FLAGS": "--tf_xla_cpu_global_jit"}),
        (
            {"xla": True, "xla_cache_dir": "c"},
            {},
            {"TF_XLA_FLAGS": f"--tf_xla_cpu_global_jit {XLA_CACHE}WORKING_DIRECTORY/c"},
        ),
    ],
)
def test_environment(flags, before, after, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with mock.patch.dict(os.environ, before, clear=True):
        set_environment(Params(**flags))
        for name, value in after.items():
            expected = value and value.replace("WORKING_DIRECTORY", str(tmp_path))
            assert os.environ.get(name) == expected, name


@pytest.mark.slow
def test_what_is_compiled_once_is_taken_from_the_folder(tmp_path):
    """The same step loses the same and adds nothing to it; a file that is torn is named."""
    cache = tmp_path / "cache"
    path, errors = tmp_path / "record.json", tmp_path / "err"

    def run(code=0):
        flags = ["--model=oracle", f"--plugin={NETWORKS}", "--batch_size=2", "--device=cpu"]
        flags += ["--num_batches=1", "--num_warmup_batches=0", "--xla_compile", "--peak_flops=1e12"]
        flags += [f"--xla_cache_dir={cache}", f"--result_json={path}"]
        assert Forked(cnnbench, flags, tmp_path / "out", errors).wait(120) == code
        losses: list[float] = json.loads(path.read_text())["losses"]
        return losses

    def kept():
        return {file.name: file.stat().st_mtime_ns for file in cache.iterdir()}

    losses = run()
    first = kept()
    assert first
    assert run() == losses
    assert kept() == first
    for file in cache.iterdir():
        os.truncate(file, 1000)
    assert run(ExitCode.FAILED) == []
    lines = errors.read_text().splitlines()  # TensorFlow's threads write their own, at any time
    (error,) = [line for line in lines if line.startswith("cnnbench: error: ")]
    assert f"--xla_cache_dir={cache}: a file in this folder cannot be read" in error


def resident_bytes():
    with open("/proc/self/status", encoding="ascii") as file:
        line = next(line for line in file if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize("optimized", [True, False])
def test_the_graph_optimizer_is_on_unless_a_flag_disables_it(optimized, monkeypatch):
    options = {}
    monkeypatch.setattr(tf.config.optimizer, "set_experimental_options", options.update)
    configure_devices(Params(device="cpu", enable_optimizations=optimized))
    assert options == {"disable_meta_optimizer": not optimized}


def test_process_peak_is_in_bytes_and_keeps_what_was_freed():
    size = 64 << 20
    block = np.ones(size, np.uint8)
    with_block = resident_bytes()
    del block
    peak = read_peak_memory("cpu")
    # The kernel's two counters are updated at different moments.
    assert with_block - (4 << 20) <= peak < 100 * with_block


def test_gpu_peak_is_that_of_the_fullest_device(monkeypatch):
    reset, visible, peaks = [], ["a", "b"], {"GPU:0": 10, "GPU:1": 30}
    memory = SimpleNamespace(
        get_memory_info=lambda device: {"current": 1, "peak": peaks[device]},
        reset_memory_stats=reset.append,
    )
    parts = {"a": None, "c": ["first", "second"]}  # c is divided
    config = SimpleNamespace(
        get_visible_devices=lambda kind: visible,
        get_logical_device_configuration=parts.get,
        experimental=memory,
    )
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(config=config))
    reset_peak_memory("cpu")
    assert reset == []
    reset_peak_memory("gpu")
    assert reset == ["GPU:0", "GPU:1"]
    assert read_peak_memory("gpu") == 30
    visible[:] = ["a", "c"]
    peaks["GPU:2"] = 50
    assert read_peak_memory("gpu") == 50
    visible.clear()
    assert read_peak_memory("gpu") is None  # in a controller


@pytest.mark.parametrize(
    ("version", "notices"),
    [
        ("2.18.0", 0),
        ("2.21.7", 0),
        ("2.22.0", 1),
        ("2.23.0-dev20270101", 1),
        ("3.0.0rc1", 1),
        ("2.17.1", None),
    ],
)
def test_a_newer_tensorflow_runs_with_one_notice_and_an_older_one_is_refused(
    version, notices, monkeypatch
):
    monkeypatch.setattr(tf, "__version__", version)
    if notices is None:
        with pytest.raises(BenchmarkError, match=r"TensorFlow 2\.17\.1 .* needs at least 2\.18$"):
            load_tensorflow()
        return
    assert load_tensorflow() is tf
    found = [
        line for line in configure_devices(Params(device="cpu")).notices if "TensorFlow" in line
    ]
    assert found == [f"TensorFlow {version} is newer than 2.21, the newest tested"] * notices


class Refusing:
    """Refuses the flags of a run when TensorFlow is imported, as the hook for plug-ins does."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "tensorflow":
            raise FlagError("num_gpus", 2, "there is one")


def test_flags_that_an_import_refuses_are_no_broken_tensorflow(monkeypatch):
    monkeypatch.delitem(sys.modules, "tensorflow")
    monkeypatch.setattr(sys, "meta_path", [Refusing, *sys.meta_path])
    with pytest.raises(FlagError, match="--num_gpus=2"):
        load_tensorflow()


class Interrupted:
    """Finds a native module whose initialisation an interrupt ends, as Python words it."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "tensorflow":
            with suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
            raise ImportError("initialization failed")


def test_an_interrupt_of_the_import_is_one(monkeypatch):
    monkeypatch.delitem(sys.modules, "tensorflow")
    monkeypatch.setattr(sys, "meta_path", [Interrupted, *sys.meta_path])
    with handling_signals():
        begin_command()
        with pytest.raises(KeyboardInterrupt):
            load_tensorflow()
        conclude_command()
        with pytest.raises(BenchmarkError, match="cannot be imported: initialization failed"):
            load_tensorflow()


STAND_IN = """
import gc, logging, sys
__version__ = "2.21.0"
get_logger = logging.getLogger
print(gc.isenabled(), sys.modules["keras.src.optimizers"])
"""
LOADS = """
import gc, sys
from cnnbench.run.runtime.loading import load_tensorflow
load_tensorflow()
print(gc.isenabled(), gc.get_freeze_count() > 10_000, "keras.src.optimizers" in sys.modules)
"""


def test_tensorflow_is_loaded_without_keras(tmp_path):
    """Keras can be used afterwards, as tests of models do."""
    (tmp_path / "tensorflow.py").write_text(STAND_IN)
    done = finished([sys.executable, "-c", LOADS], cwd=tmp_path)
    assert done.stdout == "False None\nTrue True False\n"
