"""Peak memory of the process and of the fullest GPU."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from cnnbench.runtime import memory


def resident_bytes():
    with open("/proc/self/status", encoding="ascii") as file:
        line = next(line for line in file if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def test_process_peak_is_in_bytes_and_keeps_what_was_freed():
    size = 64 << 20
    block = np.ones(size, np.uint8)
    with_block = resident_bytes()
    del block
    peak = memory.peak_bytes("cpu")
    # The kernel's two counters are updated at different moments.
    assert with_block - (4 << 20) <= peak < 100 * with_block


def test_gpu_peak_is_that_of_the_fullest_device(monkeypatch):
    reset = []
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: ["a", "b"])
    monkeypatch.setattr(
        tf.config.experimental,
        "get_memory_info",
        lambda device: {"current": 1, "peak": {"GPU:0": 10, "GPU:1": 30}[device]},
    )
    monkeypatch.setattr(tf.config.experimental, "reset_memory_stats", reset.append)
    memory.reset("cpu")
    assert reset == []
    memory.reset("gpu")
    assert reset == ["GPU:0", "GPU:1"]
    assert memory.peak_bytes("gpu") == 30
