"""Thread rules, the environment, and peak memory of the process and of the fullest GPU.

Tests cnnbench/run/runtime/loading.py.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from contextlib import nullcontext, suppress
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
from cnnbench.machine.cpu import MemoryCapacity
from cnnbench.machine.facts import XLA_CACHE
from cnnbench.run.runtime import devices
from cnnbench.run.runtime.devices import (
    cards_of_gpus,
    choose_devices,
    choose_input_threads,
    choose_thread_counts,
    configure_devices,
    find_unresponsive_gpus,
    read_peak_memory,
    reset_peak_memory,
    set_environment,
    set_threads,
    tensor_bytes_by_gpu,
)
from cnnbench.run.runtime.loading import load_tensorflow


@pytest.mark.parametrize(
    ("flags", "kind", "cores", "expected"),
    [
        ({}, "cpu", 1, (0, 0)),
        ({"num_gpus": 2}, "cpu", 2, (1, 2)),
        ({"num_gpus": 4}, "cpu", 2, (1, 2)),
        ({"num_gpus": 3}, "cpu", 8, (0, 0)),
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


@pytest.mark.parametrize(
    ("flags", "before", "warnings"),
    [
        ({}, {}, []),
        ({}, {"TF_GPU_THREAD_COUNT": "2"}, []),
        ({}, {"TF_GPU_THREAD_COUNT": "3"}, ["TF_GPU_THREAD_COUNT=3"]),
        ({"per_gpu_thread_count": 3}, {"TF_GPU_THREAD_COUNT": "3"}, []),
        # Users set these on purpose.
        ({"device": "cpu"}, {"TF_CPP_MIN_LOG_LEVEL": "0", "CUDA_VISIBLE_DEVICES": "1"}, []),
        (
            {"winograd_nonfused": False, "batchnorm_persistent": False},
            {"TF_ENABLE_WINOGRAD_NONFUSED": "1"},
            ["TF_ENABLE_WINOGRAD_NONFUSED=1"],
        ),
        (
            {"batchnorm_persistent": False},
            {"TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT": "1"},
            ["TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT=1"],
        ),
        ({"gpu_thread_mode": "global"}, {"TF_GPU_THREAD_COUNT": "9"}, []),
    ],
)
def test_variables_that_contradict_a_flag_are_named(flags, before, warnings):
    with mock.patch.dict(os.environ, before, clear=True):
        found = set_environment(Params(**flags))
    assert len(found) == len(warnings)
    for text, words in zip(found, warnings, strict=True):
        assert words in text


class Gpus:
    """TensorFlow's functions of devices, on a machine with so many GPUs.

    Attributes:
      visible: the GPUs of this process.
      parts: memory limits in MiB of the logical devices of a physical one.
      growing: GPUs whose memory grows.
      runs: whether TensorFlow has been initialised.
    """

    def __init__(self, count, monkeypatch):
        self.cards = [f"card {number}" for number in range(count)]
        self.visible, self.parts, self.growing = [*self.cards], {}, []
        self.runs = False
        self.pools = {"intra_op": 4, "inter_op": 4}
        self.options = {}
        optimizer = SimpleNamespace(
            set_jit=lambda kind: self.options.update(jit=kind),
            set_experimental_options=self.options.update,
        )
        threading = SimpleNamespace()
        for pool in self.pools:
            name = f"{pool}_parallelism_threads"
            setattr(threading, f"get_{name}", lambda pool=pool: self.pools[pool])
            setattr(threading, f"set_{name}", lambda n, pool=pool: self.set(self.pools, pool, n))
        config = SimpleNamespace(
            optimizer=optimizer,
            threading=threading,
            set_soft_device_placement=lambda on: self.options.update(soft=on),
            list_physical_devices=lambda kind: self.cards if kind == "GPU" else ["the CPU"],
            get_visible_devices=lambda kind: self.visible,
            set_visible_devices=self.show,
            get_logical_device_configuration=self.parts.get,
            set_logical_device_configuration=lambda card, of: self.set(self.parts, card, of),
            LogicalDeviceConfiguration=lambda memory_limit=None: memory_limit,
            list_logical_devices=lambda kind: self.parts.get("the CPU", ["CPU:0"]),
            experimental=SimpleNamespace(
                set_memory_growth=lambda card, on: self.growing.append((card, on))
            ),
        )
        fake = SimpleNamespace(config=config, __version__="2.21.0")
        monkeypatch.setitem(sys.modules, "tensorflow", fake)

    def set(self, values, name, value):
        if self.runs:
            raise RuntimeError
        values[name] = value

    def show(self, cards, kind):
        self.set(vars(self), "visible", cards)


@pytest.fixture
def gpus(monkeypatch):
    """gpus(COUNT): a machine with so many GPUs, without TensorFlow."""
    return lambda count: Gpus(count, monkeypatch)


@pytest.mark.parametrize(
    ("count", "flags", "kind", "numbers", "order"),
    [
        (4, {"num_gpus": 2}, "gpu", (0, 1), (0, 1)),
        (4, {"num_gpus": 2, "gpu_indices": "3,1"}, "gpu", (3, 1), (1, 0)),
        (4, {"num_gpus": 4, "device": "gpu"}, "gpu", (0, 1, 2, 3), (0, 1, 2, 3)),
        (1, {"num_gpus": 2, "gpus_per_card": 2}, "gpu", (0, 1), (0, 1)),
        (0, {"num_gpus": 3}, "cpu", (0, 1, 2), (0, 1, 2)),
        (4, {"num_gpus": 3, "device": "cpu"}, "cpu", (0, 1, 2), (0, 1, 2)),
    ],
)
def test_the_devices_of_a_run(count, flags, kind, numbers, order, gpus):
    gpus(count)
    chosen = choose_devices(Params(**flags))
    assert (chosen.kind, chosen.numbers, chosen.job.device_order) == (kind, numbers, order)
    # That there is no GPU is told, and that a GPU is a part of a card.
    told = (count == 0) + ("gpus_per_card" in flags)
    assert len(chosen.notices) == told


@pytest.mark.parametrize(
    ("count", "flags", "flag"),
    [
        (4, {"num_gpus": 5}, "num_gpus"),
        (1, {"num_gpus": 3, "gpus_per_card": 2}, "num_gpus"),
        (0, {"device": "gpu"}, "num_gpus"),
        (4, {"num_gpus": 2, "gpu_indices": "4,1"}, "gpu_indices"),
    ],
)
def test_gpus_that_are_not_there_are_refused(count, flags, flag, gpus):
    gpus(count)
    with pytest.raises(FlagError, match=f"^--{flag}="):
        choose_devices(Params(**flags))


def test_only_the_gpus_of_a_run_are_visible(gpus):
    machine = gpus(4)
    configure_devices(Params(num_gpus=2, gpu_indices="3,1"))
    assert machine.visible == ["card 1", "card 3"]
    assert (machine.parts, machine.growing) == ({}, [])
    assert machine.options == {"jit": False, "disable_meta_optimizer": False, "soft": False}
    assert machine.pools == {"intra_op": 1, "inter_op": 0}
    configure_devices(Params(num_gpus=1, allow_growth=True, xla=True, enable_optimizations=False))
    assert (machine.visible, machine.growing) == (["card 0"], [("card 0", True)])
    options = {"jit": "autoclustering", "disable_meta_optimizer": True, "soft": False}
    assert machine.options == options
    configure_devices(Params(device="cpu", num_gpus=2))
    assert machine.visible == []
    assert len(machine.parts["the CPU"]) == 2


def test_the_memory_of_a_card_is_divided_but_for_a_tenth(gpus, limits):
    machine = gpus(3)
    whole = MemoryCapacity(10 << 30, 1)
    limits(devices, least_free_gpu_memory=lambda cards, parts: whole if parts == 2 else None)
    configure_devices(Params(num_gpus=3, gpus_per_card=2, gpu_indices="4,2,5"))
    limit = int(0.9 * (10 << 30)) // 2**20
    assert machine.visible == ["card 1", "card 2"]
    assert machine.parts == {"card 1": [limit], "card 2": [limit, limit]}
    assert cards_of_gpus() == ["card 1", "card 2", "card 2"]
    limits(devices, least_free_gpu_memory=lambda cards, parts: None)
    with pytest.raises(FlagError, match=r"^--gpus_per_card=2: "):
        configure_devices(Params(num_gpus=3, gpus_per_card=2))


@pytest.mark.parametrize(("count", "visible"), [(2, 2), (1, 2), (2, 1)])
def test_a_second_run_needs_the_gpus_of_the_first(count, visible, gpus):
    machine = gpus(4)
    machine.visible, machine.runs = machine.cards[:visible], True
    flags = Params(num_gpus=count)
    if count == visible:
        assert configure_devices(flags).numbers == (0, 1)
        return
    with pytest.raises(FlagError, match=f"^--num_gpus={count}: "):
        configure_devices(flags)


@pytest.mark.parametrize("have", [1, 2, 3])
def test_a_second_run_needs_enough_logical_devices(have, gpus):
    machine = gpus(0)
    machine.parts["the CPU"], machine.runs = [None] * have, True
    flags = Params(device="cpu", num_gpus=2)
    if have >= 2:
        configure_devices(flags)
        return
    with pytest.raises(FlagError, match=f"^--num_gpus=2: .* {have} "):
        configure_devices(flags)


@pytest.mark.parametrize(("have", "made"), [(1, 2), (2, None), (3, None), (None, 2)])
def test_logical_devices_are_made_if_there_are_too_few(have, made, gpus):
    machine = gpus(0)
    before = None if have is None else ["one"] * have
    if before is not None:
        machine.parts["the CPU"] = before
    configure_devices(Params(device="cpu", num_gpus=2))
    found = machine.parts["the CPU"]
    assert found is before if made is None else found == [None] * made


@pytest.mark.parametrize(
    ("flags", "refused"),
    [
        ({}, None),
        ({"num_intra_threads": 4, "num_inter_threads": 4}, None),
        ({"num_intra_threads": 3}, "num_intra_threads"),
        ({"num_intra_threads": 0}, "num_intra_threads"),
        ({"num_inter_threads": 5}, "num_inter_threads"),
        ({"num_inter_threads": 0}, None),  # which leaves the choice to TensorFlow
    ],
)
def test_threads_of_a_process_that_runs_already_cannot_be_others(flags, refused, gpus):
    machine = gpus(0)
    machine.runs = True
    if refused is None:
        set_threads(Params(**flags), 7, 7)
        return
    with pytest.raises(FlagError, match=f"^--{refused}={flags[refused]}: .* 4 "):
        set_threads(Params(**flags), 7, 7)


def test_gpus_that_do_not_answer_are_named(gpus, monkeypatch, limits):
    """One computes, one fails, and one hangs."""
    gpus(0)
    limits(devices, _SILENT_SECONDS=0.05)
    fake, free, added = sys.modules["tensorflow"], threading.Event(), []
    names = [f"/job:localhost/replica:0/task:0/device:GPU:{number}" for number in range(3)]
    fake.config.list_logical_devices = lambda kind: [SimpleNamespace(name=one) for one in names]
    own = threading.local()

    def device(name):
        if "GPU" in name:
            own.gpu = name
        return nullcontext()

    def function(add, autograph):
        def call(number):
            total = add(number)
            if own.gpu == names[1]:
                raise OSError
            if own.gpu == names[2]:
                free.wait(30)
            added.append(total)

        return call

    fake.device, fake.function = device, function
    fake.constant = fake.identity = lambda value: value
    assert find_unresponsive_gpus() == ["GPU:2"]
    free.set()
    assert added[0] == 2.0


def resident_bytes():
    with open("/proc/self/status", encoding="ascii") as file:
        line = next(line for line in file if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def test_process_peak_is_in_bytes_and_keeps_what_was_freed():
    block = np.ones(64 << 20, np.uint8)
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
    assert (tensor_bytes_by_gpu("peak"), tensor_bytes_by_gpu("current")) == ([10, 30], [1, 1])
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
import gc, logging, sys, types
__version__ = "2.21.0"
get_logger = logging.getLogger
config = types.SimpleNamespace(set_visible_devices=print)
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


PLUG_IN = """
import contextlib, sys
from cnnbench.run.runtime import loading
for setup in ([], [contextlib.nullcontext]):
    loading.early_setup[:] = setup
    loading.hook_early_import()
    import tensorflow
    del sys.modules["tensorflow"]
"""


def test_a_plug_in_sees_no_gpus_unless_the_command_measures(tmp_path):
    (tmp_path / "tensorflow.py").write_text(STAND_IN)
    done = finished([sys.executable, "-c", PLUG_IN], cwd=tmp_path)
    assert done.stdout == "False None\n[] GPU\nFalse None\n"
