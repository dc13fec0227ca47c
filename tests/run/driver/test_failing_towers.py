"""A tower that fails while others wait for it in a collective ends the run with its error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PLUGIN = Path(__file__).parents[2] / "plugins/failing_plugin.py"


def test_m6_a_replica_that_fails_in_a_step_ends_the_process() -> None:
    command = [
        *(sys.executable, "-m", "cnnbench", "--model=fails_to_run", f"--model_plugin={PLUGIN}"),
        *("--device=cpu", "--num_gpus=2", "--num_batches=2", "--num_warmup_batches=0"),
        *("--quiet_conditions=all", "--progress=off"),
        *("--variable_update=mirrored_strategy", "--cross_device_ops=ring"),
    ]
    ended = subprocess.run(
        command,
        timeout=240,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert ended.returncode == 4
    assert "the second tower cannot run" in ended.stderr
