"""What the header says of a job of several processes."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from cnnbench.flags import Params, validate
from cnnbench.run.driver.describe import header
from cnnbench.run.driver.plan import make_plan
from cnnbench.run.runtime.tensorflow import Devices

TWO = {"job_name": "worker", "worker_hosts": "localhost:1,localhost:2"}
COLLECTIVE = {"variable_update": "collective_all_reduce"}
STRATEGY = {"variable_update": "multi_worker_mirrored_strategy"}
DISTRIBUTED = {"variable_update": "distributed_all_reduce"}


def header_of(kind: str, labels: Sequence[str] = (), **flags: object) -> dict[str, str]:
    params = Params(model="trivial", device=kind, **flags)  # type: ignore[arg-type]
    validate(params)
    plan = make_plan(params)
    own = tuple(labels) or tuple(f"/{kind}:{i}" for i in range(params.num_gpus))
    devices = Devices(job=plan.job.on(kind), labels=own, intra_threads=0, inter_threads=0)
    lines = header(params, plan, devices, "2.21.0", kind)
    return dict(re.split(": +", line, maxsplit=1) for line in lines if ": " in line)


def all_reduce_of(kind: str, **flags: object) -> str | None:
    return header_of(kind, **flags).get("AllReduce")  # type: ignore[arg-type]


def test_a_controller_names_the_devices_of_the_workers() -> None:
    job = {"job_name": "controller", "controller_host": "localhost:3", "num_gpus": 2}
    flags = {**job, "worker_hosts": "localhost:1,localhost:2", **DISTRIBUTED}
    found = header_of("gpu", ["/cpu:0"], all_reduce_spec="xring", **flags)  # type: ignore[arg-type]
    tasks = [f"job:worker/replica:0/task{i}" for i in (0, 1)]
    assert found["Devices"] == str([f"{task}/gpu:{i}" for task in tasks for i in (0, 1)])


def test_gpu_indices_are_named_as_on_the_machine() -> None:
    found = header_of("gpu", ["/gpu:3", "/gpu:1"], num_gpus=2)
    assert found["Devices"] == "['/gpu:3', '/gpu:1']"


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (
            {**TWO, **COLLECTIVE, "num_gpus": 2},
            "collective (--communication_hint=auto), 4 devices in 2 processes",
        ),
        (
            {**COLLECTIVE, "num_gpus": 2, "communication_hint": "ring"},
            "collective (--communication_hint=ring), 2 devices in 1 process",
        ),
        ({**COLLECTIVE}, "None, 1 device in 1 process"),
        (
            {**TWO, **COLLECTIVE, "num_gpus": 2, "all_reduce_spec": "copy/collective"},
            "copy/collective (--communication_hint=auto), 4 devices in 2 processes",
        ),
        ({**TWO, **COLLECTIVE, "forward_only": True}, "None, 2 devices in 2 processes"),
        ({**TWO, **STRATEGY}, "ring (--cross_device_ops=auto), 2 devices in 2 processes"),
        ({**TWO, **DISTRIBUTED, "all_reduce_spec": "xring"}, "xring"),
        ({"variable_update": "replicated", "num_gpus": 2}, "None"),
        ({"variable_update": "parameter_server", "num_gpus": 2}, None),
        ({"variable_update": "central_storage_strategy", "num_gpus": 2}, None),
    ],
)
def test_how_gradients_are_reduced_and_between_how_many_devices(
    flags: dict[str, object], text: str | None
) -> None:
    assert all_reduce_of("cpu", **flags) == text


def test_between_gpus_a_strategy_reduces_by_nccl() -> None:
    found = all_reduce_of("gpu", **TWO, **STRATEGY, num_gpus=2)
    assert found == "nccl (--cross_device_ops=auto), 4 devices in 2 processes"
