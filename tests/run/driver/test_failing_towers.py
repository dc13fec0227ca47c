"""A tower that fails while others wait for it in a collective ends the run with its error."""

import pytest
from forked import Forked, cnnbench
from short_runs import NETWORKS

pytestmark = pytest.mark.slow


def test_m6_a_replica_that_fails_in_a_step_ends_the_process(tmp_path):
    flags = [
        *("--model=fails_to_run", f"--plugin={NETWORKS}", "--device=cpu", "--num_gpus=2"),
        *("--num_batches=2", "--num_warmup_batches=0", "--quiet_conditions=all", "--progress=off"),
        *("--variable_update=mirrored_strategy", "--cross_device_ops=ring"),
    ]
    process = Forked(cnnbench, flags, tmp_path / "out", tmp_path / "err")
    assert process.end(120) == (4, False)
    assert "the second tower cannot run" in (tmp_path / "err").read_text()
