from __future__ import annotations

import pytest

from cnnbench.variable_mgr.all_reduce import ReduceContext

TASK = "/job:worker/replica:0/task:1"
OTHER = "/job:worker/replica:0/task:2"
MIXED = (
    f"{TASK}/device:CPU:0",
    f"{TASK}/device:CPU:1",
    f"{TASK}/device:GPU:0",
    f"{TASK}/device:GPU:1",
    f"{OTHER}/device:CPU:0",
)


def test_cpus_of_a_process_have_one_memory():
    context = ReduceContext(devices=MIXED)
    first, second, *others = map(context.memory_of, MIXED)
    assert first == second
    assert len({first, *others}) == context.memories == 4


def test_every_device_can_be_given_a_memory():
    context = ReduceContext(devices=MIXED, share_memory=False)
    assert [context.memory_of(device) for device in MIXED] == [*MIXED]
    assert context.memories == len(MIXED)


@pytest.mark.parametrize("share", [True, False])
def test_a_part_keeps_everything_but_devices_and_shards(share):
    whole = ReduceContext(devices=MIXED, cpu_device=MIXED[0], shards=3, share_memory=share)
    part = whole.within(MIXED[:2], shards=2)
    assert part.devices == MIXED[:2]
    assert part.shards == 2
    assert part.memories == (1 if share else 2)
    assert (part.cpu_device, part.share_memory) == (MIXED[0], share)
