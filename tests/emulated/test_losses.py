"""Losses of runs on emulated GPUs: those of runs on CPUs."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import check_emulated_gpus
import pytest
from gpu_cases import (
    FORWARD_LOSS,
    TOLERANCES,
    command,
    differences,
    machine,
    on_cpus,
    values,
)
from short_runs import NETWORKS

from cnnbench import BenchmarkCNN, Params
from cnnbench.run.driver.training import Training

pytestmark = pytest.mark.slow

Flags = Mapping[str, Any]

COMMON = {"plugin": NETWORKS, "model": "normal", "batch_size": 2, "num_batches": 5}
COMMON |= {"num_warmup_batches": 0}

EVALUATED = {"eval_during_training_every_n_steps": 5, "num_eval_batches": 1}
SCALED = {"precision": "fp16", "fp16_enable_auto_loss_scale": True}
# The gradients have 16, 64, 432, 576, 1024, 4004 and 16016 bytes.
BY_SIZE = "collective:16:pscpu:64:psgpu:432:rechd:576:tree:1K:xring#2:4004:hierarchical_copy"

# Every value of a flag with this or that of the others.
RUNS: tuple[dict[str, Any], ...] = (
    {"local_parameter_device": "cpu", "xla_compile": True, "bn_stats": "mean", **EVALUATED},
    {"staged_vars": True, "precision": "fp16", "gpu_thread_mode": "gpu_shared"},
    {"data_format": "NHWC", "gpu_thread_mode": "global"},
    {"variable_update": "independent", "precision": "bf16", **EVALUATED},
    {
        **{"variable_update": "replicated", "all_reduce_spec": "nccl", "xla_compile": True},
        **{"gradient_repacking": 2, "variable_consistency": "relaxed", "precision": "fp16"},
    },
    {
        **{"variable_update": "replicated", "local_parameter_device": "cpu"},
        **{"agg_small_grads_max_bytes": 1000, **SCALED, **EVALUATED},
    },
    {
        **{"variable_update": "replicated", "all_reduce_spec": "nccl/rechd", "num_gpus": 4},
        **{"all_reduce_group_size": 2, "gradient_bucket_bytes": 1000},
    },
    {"variable_update": "distributed_all_reduce", "all_reduce_spec": BY_SIZE},
    {"variable_update": "collective_all_reduce", "bn_stats": "sync", "precision": "bf16"},
    {"variable_update": "mirrored_strategy", "cross_device_ops": "nccl", **EVALUATED},
    {"variable_update": "central_storage_strategy", "precision": "fp16"},
    {"forward_only": True, "freeze_when_forward_only": True, "xla_compile": True},
    {
        **{"model": "odd", "num_gpus": 1, "optimizer": "momentum", "gradient_clip": 1.0},
        **EVALUATED,
    },
    {
        **{"variable_update": "parameter_server", "gpus_per_card": 4},
        **{"workers": 2, "ps": 1, "num_gpus": 2},
    },
    {
        **{"variable_update": "distributed_all_reduce", "all_reduce_spec": "nccl/xring"},
        **{"workers": 2, "ps": 0, "num_gpus": 2},
    },
)

Values = dict[str, float]


def named(flags: Flags) -> str:
    return " ".join(f"{name}={value}" for name, value in flags.items() if name not in EVALUATED)


@functools.cache
def _on_cpus(flags: str) -> Values:
    record = BenchmarkCNN(Params.from_dict(json.loads(flags))).run()
    return values(json.loads(record.to_json()))


@pytest.fixture
def losses(emulated, quick_start, monkeypatch) -> Callable[[Flags], Values]:
    """Runs to their end; each on CPUs once, in this process."""
    monkeypatch.setattr(
        Training, "_step_values", Training._step_values
    )  # as it is again after the test
    exec(FORWARD_LOSS, {})

    def run(flags: Flags) -> Values:
        given = {**COMMON, **flags}
        if flags.get("device") == "cpu":
            return _on_cpus(json.dumps(given))
        words = [*command(given), "--result_json=record.json"]
        found = emulated(*words, **machine(flags), before=FORWARD_LOSS, record=False)
        assert {one.what for one in found.work} <= {"kernel"} | COPIES
        return values(found.record)

    return run


COPIES = {"MemcpyH2D", "MemcpyD2H", "MemcpyD2D", "MemcpyP2P"}


@pytest.mark.parametrize("flags", RUNS, ids=named)
def test_losses_are_those_of_cpus(flags: Flags, losses: Callable[[Flags], Values]) -> None:
    flags = {"num_gpus": 2, **flags}
    expected = losses(on_cpus(flags))
    assert len(set(expected.values())) > 1 or flags.get("forward_only")
    far = differences(losses(flags), expected)
    assert max(far.values()) <= TOLERANCES[flags.get("precision", "fp32")], far


def test_a_run_goes_on_in_another_mode_from_a_checkpoint(
    losses: Callable[[Flags], Values], tmp_path: Path
) -> None:
    whole = losses(on_cpus({"num_gpus": 2, **EVALUATED}))
    place = {"num_gpus": 2, "train_dir": tmp_path}
    replicated = {"variable_update": "replicated", "all_reduce_spec": "nccl"}
    first = losses({**place, **replicated, "num_batches": 3})
    rest = losses({**place, "variable_update": "distributed_replicated", "num_batches": 5})
    found = {**first, **{f"loss {3 + step}": rest[f"loss {step}"] for step in (1, 2)}}
    found |= losses({**place, "eval": True, "num_eval_batches": 1})
    assert max(differences(found, whole).values()) <= TOLERANCES["fp32"]


def test_decay_over_many_steps(losses: Callable[[Flags], Values]) -> None:
    rate, decay, steps = 5e-6, 0.04, 100
    flags = {
        **{"model": "drift", "weight_decay": decay, "init_learning_rate": rate},
        "num_batches": steps,
    }
    gpu, cpu = losses({**flags, "num_gpus": 2}), losses({**flags, "num_gpus": 2, "device": "cpu"})
    # On CPUs decay is a part of the update, whose steps differ by up to 2^-17 of a weight.
    assert max(differences(gpu, cpu).values()) <= 2 * 2.0**-17
    weights = 60_000 * (1 - rate * decay) ** (2 * (steps - 1))
    taken = gpu["loss 1"] - gpu[f"loss {steps}"]
    assert taken > 0.9 * decay / 2 * (60_000 - weights)


def test_what_scripts_check_emulated_gpus_says(
    emulated: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ran: list[Sequence[str]] = []

    def run(*words: str, **how: Any) -> object:
        ran.append(words)
        return emulated(*words, **how)

    run.close = lambda: None  # type: ignore[attr-defined] # its processes are those of all tests
    monkeypatch.setattr("emulated.EmulatedGpus", lambda folder: run)
    flags = ["--model=lenet", "--num_gpus=2", "--init_learning_rate=0.001"]
    argv = [f"--results={tmp_path / 'results.jsonl'}", "--", *flags]
    for _ in range(2):  # the second time by what is kept
        assert check_emulated_gpus.main(argv) == 0
        line, last = capsys.readouterr().out.splitlines()
        assert line.startswith("ok (")
        assert {*line.partition(": ")[2].split()} == {*flags}
        assert last == "1 runs, 0 with findings"
        assert len(ran) == 2
