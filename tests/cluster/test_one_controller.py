"""Jobs under one controller: real processes, whose losses are those of NumPy and of one process."""

from __future__ import annotations

import pytest
from jobs import SECONDS, record_of
from oracle import PLUGIN, RATE, STEPS, expected_losses, slopes

pytestmark = pytest.mark.timeout(2 * SECONDS)

ORACLE = {
    "device": "cpu",
    "model": "oracle",
    "model_plugin": PLUGIN,
    "optimizer": "momentum",
    "weight_decay": 0.0625,
    "init_learning_rate": RATE,
    "num_batches": STEPS,
    "num_warmup_batches": 0,
    "quiet_conditions": "load",
}


@pytest.mark.parametrize(
    ("towers", "order", "flags", "controller"),
    [
        (
            2,
            ("worker:1", "worker:0"),
            {"variable_update": "distributed_all_reduce", "all_reduce_spec": "pscpu:4:copy/xring"},
            False,
        ),
        (
            1,
            ("ps:0", "controller:0", "worker:0", "worker:1"),
            {"variable_update": "parameter_server", "gradient_reduction": "sum"},
            True,
        ),
        (1, ("worker:0", "ps:0", "worker:1"), {"variable_update": "distributed_replicated"}, False),
    ],
    ids=["distributed_all_reduce", "parameter_server", "distributed_replicated"],
)
def test_losses_equal_the_oracle(tmp_path, towers, order, flags, controller):
    all_flags = {**ORACLE, "num_gpus": towers, **flags}
    record = record_of(tmp_path, all_flags, order, controller=controller)
    reduction = flags.get("gradient_reduction", "mean")
    mode = flags["variable_update"]
    expected = expected_losses(slopes(2 * towers), mode, "momentum", 0.0625, reduction)
    assert record["losses"] == pytest.approx(expected, rel=1e-5)
    assert record["batch"] == {"per_device": 2, "global": 4 * towers}
    placement = record["placement"]
    assert (placement["num_workers"], placement["num_towers"]) == (2, 2 * towers)
