"""A tower that fails ends the run with its error, whoever runs the towers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = Path(__file__).parents[1] / "plugins/failing_plugin.py"


@pytest.mark.parametrize(
    ("model", "flags"),
    [
        ("fails_to_run", ["--variable_update=mirrored_strategy"]),
        ("fails_to_build", ["--variable_update=mirrored_strategy", "--bn_stats=sync"]),
        ("fails_to_build", ["--variable_update=replicated", "--bn_stats=sync"]),
    ],
    ids=["ring", "strategy", "in-step"],
)
def test_a_failing_tower_ends_the_process(model: str, flags: list[str]) -> None:
    command = [
        *(sys.executable, "-m", "cnnbench", f"--model={model}", f"--model_plugin={PLUGIN}"),
        *("--device=cpu", "--num_gpus=2", "--num_batches=2", "--num_warmup_batches=0"),
        *("--quiet_conditions=all", "--progress=off", *flags),
    ]
    ended = subprocess.run(
        command,
        timeout=240,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert ended.returncode not in (0, 2)
    assert ("CheckNumerics" if model == "fails_to_run" else "cannot be built") in ended.stderr
