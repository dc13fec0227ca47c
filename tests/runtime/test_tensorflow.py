"""Thread rules and device choice that need no device."""

from __future__ import annotations

import os

import pytest

from cnnbench.flags import Params
from cnnbench.runtime.tensorflow import (
    Settings,
    export_environment,
    input_threads,
    thread_counts,
)


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
def test_thread_counts(flags, kind, cores, expected) -> None:
    assert thread_counts(Settings.of(Params(**flags)), kind, cores) == expected


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
def test_input_threads(flags, kind, expected, monkeypatch) -> None:
    monkeypatch.setattr("cnnbench.runtime.tensorflow.available_cores", lambda: 16)
    assert input_threads(Settings.of(Params(**flags)), kind) == expected


def test_the_environment_is_set_but_never_overridden(monkeypatch) -> None:
    monkeypatch.setattr(os, "environ", {"TF_GPU_THREAD_COUNT": "7"})
    params = Params(autotune_threshold=2, winograd_nonfused=False, use_unified_memory=True)
    export_environment(Settings.of(params))
    assert os.environ["TF_GPU_THREAD_COUNT"] == "7"
    assert os.environ["TF_GPU_THREAD_MODE"] == "gpu_private"
    assert os.environ["TF_AUTOTUNE_THRESHOLD"] == "2"
    assert os.environ["TF_ENABLE_WINOGRAD_NONFUSED"] == "0"
    assert os.environ["TF_FORCE_UNIFIED_MEMORY"] == "1"
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_a_cpu_run_does_not_touch_the_gpus(monkeypatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    export_environment(Settings.of(Params(device="cpu")))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
