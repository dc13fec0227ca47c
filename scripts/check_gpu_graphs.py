"""Traces steps for GPUs on a machine without one, and reports faults of their graphs.

Usage: scripts/check_gpu_graphs [--networks] [--modes] [--reductions] [--jobs] [-- FLAGS]

Reports operations on a GPU that have no GPU kernel for their dtypes, tensors and signals between
devices that the mode does not allow, and variables on a wrong device; a line each, below the flags
of the run. Nothing is executed. docs/gpus.md describes the checks.

Without arguments everything is checked, in 420 runs. --networks checks every network on
two and on eight GPUs; --modes the modes of --variable_update, --reductions the all-reduce
algorithms, each with pairs of other flags; --jobs jobs of several processes. Flags of cnnbench
after -- are one run to check. --model=NAME among the options selects one network.

The exit status is 0 without findings, 1 with some, 2 for wrong use.
"""

from __future__ import annotations

import importlib
import os
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/helpers")]

PARTS = ("networks", "modes", "reductions", "jobs")
# The smallest network with convolutions, batch norm, dropout and a classifier.
SMALL = {"model_plugin": str(ROOT / "docs/examples/tiny_plugin.py"), "model": "tiny"}


def cases(parts: Sequence[str], model: str) -> Iterator[Mapping[str, Any]]:
    """The runs to check, as flags.

    Args:
      parts: some of `PARTS`.
      model: the only network, or "" for all.
    """
    gpu_cases = importlib.import_module("gpu_cases")
    if "networks" in parts:
        yield from (one for one in gpu_cases.networks() if model in ("", one["model"]))
    if "modes" in parts:
        yield from gpu_cases.modes(SMALL)
    if "reductions" in parts:
        yield from gpu_cases.reductions(SMALL)
    if "jobs" in parts:
        yield from ({**SMALL, **job} for job in gpu_cases.JOBS)


def check(flags: Mapping[str, Any]) -> int:
    """Prints what is wrong with one run; returns how many findings there are."""
    gpu_graphs = importlib.import_module("gpu_graphs")
    start = time.monotonic()
    try:
        found = gpu_graphs.findings(flags)
    except Exception as error:
        lines = [f"cannot be built: {type(error).__name__}: {' '.join(str(error).split())}"]
    else:
        lines = [f"{one.step}: {count} x {one.what}" for one, count in found.items()]
    words = [f"--{name}={value}" for name, value in flags.items()]
    status = f"{len(lines)} findings" if lines else "ok"
    print(f"{status} ({time.monotonic() - start:.0f} s): {shlex.join(words)}", flush=True)
    for line in lines:
        print(f"  {line}", flush=True)
    return len(lines)


def main(argv: Sequence[str]) -> int:
    """The command; returns its exit status."""
    split = argv.index("--") if "--" in argv else len(argv)
    options, given = argv[:split], argv[split + 1 :]
    if {"--help", "-h"} & set(options):
        print(__doc__)
        return 0
    model = "".join(o.removeprefix("--model=") for o in options if o.startswith("--model="))
    parts = [o.removeprefix("--") for o in options if not o.startswith("--model=")]
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        print(f"{unknown[0]}: no option; see --help", file=sys.stderr)
        return 2
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    if not tf.test.is_built_with_cuda():
        print("this TensorFlow was built without CUDA: it has no GPU kernels", file=sys.stderr)
        return 2
    if given:
        from cnnbench.flags.parse import parse_args

        parsed = parse_args(given)
        values = {name: getattr(parsed.params, name) for name in parsed.explicit_flags}
        runs: Iterator[Mapping[str, Any]] = iter([values])
    else:
        runs = cases(parts or (["networks"] if model else PARTS), model)
    counts = [check(flags) for flags in runs]
    if not counts:
        print(f"--model={model}: no such network; cnnbench models lists them", file=sys.stderr)
        return 2
    print(f"{len(counts)} runs, {sum(map(bool, counts))} with findings")
    return 1 if any(counts) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
