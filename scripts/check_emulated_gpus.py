"""Runs cnnbench on emulated GPUs and compares losses and evaluations with those of CPUs.

Usage: scripts/check_emulated_gpus [OPTIONS] [-- FLAGS]

Each run trains for five steps on two or eight emulated GPUs, and for the same steps on CPUs. On
CPUs, it uses the simplest mode that computes the same results, without all-reduce algorithms,
packing, layouts and XLA. The line of a run shows the largest relative difference of a loss or a
metric. Below the line are findings: differences above the tolerance of the precision, failures, and
kernels of training steps that wait for the device.

Without options, all runs are checked. Flags of cnnbench after -- select a single run.

The exit status is 0 without findings, 1 with findings, 2 for wrong use.
"""

from __future__ import annotations

import importlib
import json
import math
import shlex
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from command_line import parse_options, run_script

from cnnbench.base.child import exit_sentence
from cnnbench.flags.declare import flag
from cnnbench.flags.parse import split_at_double_dash
from cnnbench.models import get_model
from cnnbench.models.declaration import declare
from cnnbench.plan import parse_run

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/helpers")]

gpu_cases = importlib.import_module("gpu_cases")

Flags = Mapping[str, Any]

# The smallest network with convolutions, batch norm, dropout and a classifier.
SMALL = {"plugin": str(ROOT / "docs/examples/tiny_plugin.py"), "model": "tiny"}
STEPS = {"batch_size": 2, "num_batches": 5, "num_warmup_batches": 0}
# Learning rates by optimizer with which losses change, but rounding errors are not magnified.
RATES = {"sgd": 0.01, "momentum": 0.01, "rmsprop": 0.05, "lars": 1.0}
RATE = 0.001  # Learning rate of all other optimizers.
# An update may change the loss by this share; batch norm would magnify larger differences.
CHANGE = 1e-3
TIMEOUT = 1500.0  # Seconds after which a run is ended.

# Operations on tensor lists (recurrent layers) wait in the emulator, but not on real GPUs.
OF_LISTS = ("TensorList", "ZerosLike", "AddN")

# Tolerance for whole networks: batch norm over few values magnifies rounding errors.
# On CPUs, the losses of efficientnet_b7 in NCHW and in NHWC differ by half of this tolerance.
TOLERANCE_NETWORKS = 1e-4


PARTS = ("networks", "modes", "reductions", "jobs", "divided")


@dataclass(frozen=True)
class Options:
    """Command-line options that select the runs to check."""

    networks: bool = flag(False, "Every network with small images, on two and on eight GPUs.")
    modes: bool = flag(False, "The modes of --variable_update, with pairs of other flags.")
    reductions: bool = flag(False, "The all-reduce algorithms, with pairs of other flags.")
    jobs: bool = flag(False, "Jobs of several processes.")
    divided: bool = flag(False, "Modes, algorithms and jobs with --gpus_per_card.")
    model: str | None = flag(None, "The only network.")
    results: str | None = flag(
        None, "Store values in this file; repeat only runs that failed or are missing.", path="file"
    )


def cases(options: Options) -> Iterator[Flags]:
    """Yields the flags of each run to check."""
    asked = [part for part in PARTS if getattr(options, part)]
    parts = asked or (["networks"] if options.model else PARTS)
    if "modes" in parts:
        yield from gpu_cases.modes(SMALL)
    if "reductions" in parts:
        yield from gpu_cases.reductions(SMALL)
    if "jobs" in parts:
        yield from ({**SMALL, **job} for job in gpu_cases.JOBS)
    if "divided" in parts:
        yield from gpu_cases.divided(SMALL)
    if "networks" in parts:
        # The number of variables determines how long a run takes.
        def variables(one: Flags) -> int:
            return len(declare(get_model(one["model"], one["data_name"]), 1001).variables)

        chosen = [one for one in gpu_cases.networks() if options.model in (None, one["model"])]
        yield from sorted(chosen, key=lambda one: (one["num_gpus"], variables(one)))


def add_learning_rate(flags: Flags, runs: CachedRunner) -> dict[str, Any]:
    """Adds a learning rate with which losses change, but rounding errors are not magnified.

    For a network, the rate is the largest power of ten up to which a first update changes the loss
    by less than `CHANGE`, because batch norm over few images magnifies rounding errors.
    """
    given = flags.get("forward_only") or "init_learning_rate" in flags
    if given or _is_small(flags):
        return {"init_learning_rate": RATES.get(flags.get("optimizer", "sgd"), RATE), **flags}
    own = {name: flags[name] for name in ("model", "data_name") if name in flags}
    same = {**own, "num_batches": 2}

    def second_loss(rate: float) -> float:
        found = runs({**same, "init_learning_rate": rate}, gpus=0)["values"]
        return float(found.get("loss 2", math.nan))

    still = second_loss(0.0)

    def is_small(rate: float) -> bool:
        return abs(second_loss(rate) - still) < CHANGE * still

    rates = [float(f"1e{exponent}") for exponent in range(-10, -3)]
    start = chosen = rates.index(1e-6)
    while chosen and not is_small(rates[chosen]):
        chosen -= 1
    while start <= chosen < len(rates) - 1 and is_small(rates[chosen + 1]):
        chosen += 1
    return {**flags, "init_learning_rate": rates[chosen]}


class CachedRunner:
    """Runs cnnbench on emulated GPUs and on CPUs, each command only once.

    Args:
      results: file of the measurements, with a line of JSON per run; None to store none.
    """

    def __init__(self, results: Path | None) -> None:
        emulated = importlib.import_module("emulated")
        self._folder = tempfile.TemporaryDirectory()
        self._run = emulated.EmulatedGpus(Path(self._folder.name))
        self._results = results
        self._known: dict[str, dict[str, Any]] = {}
        if results is not None and results.exists():
            rows = map(json.loads, results.read_text().splitlines())
            self._known = {row["command"]: row for row in rows if not row["error"]}

    def close(self) -> None:
        """Ends the processes that run cnnbench."""
        self._run.close()
        self._folder.cleanup()

    def __call__(self, flags: Flags, gpus: int, parts: int = 1) -> dict[str, Any]:
        """Runs cnnbench with these flags, or returns the stored results of an equal run.

        Args:
          gpus: number of cards of the machine; 0 for a run on CPUs.
          parts: number of GPUs per card.

        Returns:
          "values" by name; "synchronous", for each type of operation that waited for the device in
          training steps, the number of waits; and "error", which is "" if the run succeeded.
        """
        flags = {**STEPS, "device": "gpu" if gpus else "cpu", **flags}
        text = shlex.join(gpu_cases.command(flags))
        if text not in self._known:
            self._known[text] = {"command": text, **self._measured(flags, gpus, parts)}
            if self._results is not None:
                with self._results.open("a") as file:
                    file.write(json.dumps(self._known[text]) + "\n")
        return self._known[text]

    def _measured(self, flags: Flags, gpus: int, parts: int) -> dict[str, Any]:
        before = gpu_cases.FORWARD_LOSS
        if not _is_small(flags):
            names = f"{flags['model']!r}, {flags.get('data_name', 'imagenet')!r}"
            small = f"import networks; networks.with_small_examples({names})"
            before = f"{small}{before}"
        settings: dict[str, Any] = {"gpus": gpus, "timeout": TIMEOUT, "before": before}
        if gpus:
            settings |= {"memory_mb": 16384, "parts": parts}
        elif "regnet" in flags["model"]:
            # Only oneDNN has gradients of grouped convolutions on CPUs.
            settings["environment"] = {"TF_ENABLE_ONEDNN_OPTS": "1"}
        start = time.monotonic()
        row: dict[str, Any] = {"error": "", "values": {}, "synchronous": {}}
        try:
            words = [*gpu_cases.command(flags), "--result_json=record.json"]
            done = self._run(*words, record=False, status=None, **settings)
        except AssertionError:
            return {**row, "error": f"it has not ended after {TIMEOUT:.0f} s"}
        if done.status:
            lines = done.err.splitlines()
            errors = [line for line in lines if line.startswith("cnnbench: error")]
            last = (errors or lines or [""])[-1]
            row["error"] = f"{exit_sentence('the run', done.status)}: {last}"
        else:
            row["values"] = gpu_cases.values(done.record)
        row["synchronous"] = Counter(
            one.operation.rpartition(":")[2]
            for one in done.work
            if one.what == "synchronous" and "evaluation_" not in one.operation
        )
        return {**row, "seconds": round(time.monotonic() - start, 1)}


def _is_small(flags: Flags) -> bool:
    return bool(flags["model"] == SMALL["model"])


def compare_results(flags: Flags, runs: CachedRunner) -> list[str]:
    """Prints the largest difference between the results on GPUs and on CPUs; returns findings."""
    start = time.monotonic()
    flags = add_learning_rate(flags, runs)
    gpus = runs(flags, **gpu_cases.machine(flags))
    cpus = runs(gpu_cases.on_cpus(flags), gpus=0)
    sides = {"GPUs": gpus["error"], "CPUs": cpus["error"]}
    findings = [f"{side}: {error}" for side, error in sides.items() if error]
    largest = math.nan
    if not findings:
        far = gpu_cases.differences(gpus["values"], cpus["values"])
        largest = max(far.values())
        limit = gpu_cases.TOLERANCES[flags.get("precision", "fp32")]
        limit = limit if _is_small(flags) else TOLERANCE_NETWORKS
        # With asynchronous workers, losses must exist but may differ.
        coordinated = flags.get("variable_update") == "parameter_server_strategy"
        asynchronous = coordinated or not flags.get("cross_replica_sync", True)
        findings += [
            f"{name} is {gpus['values'].get(name)}, on CPUs {cpus['values'].get(name)}"
            for name, one in far.items()
            if not one <= (1.0 if asynchronous else limit)
        ]
        losses = [value for name, value in cpus["values"].items() if name.startswith("loss ")]
        trained = _is_small(flags) and not flags.get("forward_only")
        if trained and not max(losses) > (1 + 3 * limit) * min(losses):
            findings.append("the losses hardly change: they would not show a wrong update")
    findings += [
        f"{count} x {operation} waited for the device"
        for operation, count in gpus["synchronous"].items()
        if not operation.startswith(OF_LISTS)
    ]
    words = shlex.join(f"--{name}={value}" for name, value in flags.items())
    status = f"{len(findings)} findings" if findings else "ok"
    print(f"{status} ({time.monotonic() - start:.0f} s, {largest:.1e}): {words}", flush=True)
    for line in findings:
        print(f"  {line}", flush=True)
    return findings


def main(argv: Sequence[str]) -> int:
    """Checks the selected runs; returns the exit status."""
    words, given = split_at_double_dash(argv)
    options = parse_options(Options, __doc__, words)
    if given:
        parsed = parse_run(given)
        own = {name: getattr(parsed.params, name) for name in parsed.explicit_flags}
        chosen: Iterator[Flags] = iter([{"model": parsed.params.model, **own}])
    else:
        chosen = cases(options)
    runs = CachedRunner(Path(options.results) if options.results else None)
    try:
        found = [compare_results(flags, runs) for flags in chosen]
    finally:
        runs.close()
    if not found:
        message = f"--model={options.model}: no such network; cnnbench models lists them"
        print(message, file=sys.stderr)
        return 2
    print(f"{len(found)} runs, {sum(map(bool, found))} with findings")
    return 1 if any(found) else 0


if __name__ == "__main__":
    run_script(main)
