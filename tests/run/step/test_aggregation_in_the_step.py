"""What the flags of gradient aggregation do to the traced step of a run."""

from __future__ import annotations

from collections import Counter

import pytest
import tensorflow as tf
from short_runs import build

pytestmark = pytest.mark.usefixtures("quick_start")

# trivial has six variables.
VARIABLES = 6
TOWERS = 2


class Operations:
    """The step of a run, by the devices and scopes of its operations."""

    def __init__(self, **flags):
        own = {"batch_size": 2, "num_gpus": TOWERS, "variable_update": "replicated", **flags}
        self.all: list[tf.Operation] = build(
            "trivial", data_name="cifar10", **own
        ).step.graph.get_operations()

    @property
    def reducing(self):
        """Those of the all-reduce itself."""
        return [op for op in self.all if op.name.startswith("allreduce_")]

    def adding(self):
        return [op for op in self.reducing if op.type in ("AddN", "AddV2")]

    def by_device(self, kind):
        return Counter(op.device for op in self.all if op.type == kind)


def test_by_default_each_gradient_is_copied_to_one_device(cpu_devices):
    plain = Operations(weight_decay=0.0)  # which is not an aggregation
    assert [op.type for op in plain.reducing] == ["AddN"] * VARIABLES
    assert {len(op.inputs) for op in plain.reducing} == {TOWERS}
    assert Counter(op.device for op in plain.reducing) == dict.fromkeys(
        cpu_devices[:TOWERS], VARIABLES // TOWERS
    )
    assert {op.name for op in plain.reducing} == {f"allreduce_{i}/AddN" for i in range(VARIABLES)}
    # What packing, deferring and narrowing would add.
    assert not {"ConcatV2", "SplitV", "Cast", "AssignVariableOp"} & {op.type for op in plain.all}


def test_repacking_joins_on_every_tower_and_adds_once_per_pack(cpu_devices):
    packs = 3
    packed = Operations(gradient_repacking=packs)
    # A pack is joined on each tower; a tensor that straddles two is joined again at the end.
    joined = packed.by_device("ConcatV2")
    assert set(joined) == set(cpu_devices[:TOWERS])
    assert min(joined.values()) >= packs
    assert packed.by_device("SplitV").keys() == joined.keys()
    assert [op.type for op in packed.reducing] == ["AddN"] * packs


def test_small_gradients_travel_together(cpu_devices):
    # The kernel and the bias of the first layer, 12,288 and 4 bytes.
    small = Operations(agg_small_grads_max_bytes=12288)
    assert small.by_device("ConcatV2") == dict.fromkeys(cpu_devices[:TOWERS], 1)
    assert len(small.adding()) == VARIABLES - 1


@pytest.mark.slow
def test_a_hierarchical_copy_adds_between_pairs_of_devices_first():
    for flags, pairs in (
        ({"num_gpus": 4}, ["0", "2", "0"]),
        ({"network_topology": "gcp_v100", "num_gpus": 8}, ["0", "5", "0"]),
    ):
        copied = Operations(hierarchical_copy=True, **flags)
        assert len(copied.adding()) == 3 * VARIABLES
        of_first = [op.device[-1] for op in copied.adding() if op.name.startswith("allreduce_0/")]
        assert of_first == pairs


def test_devices_with_memories_of_their_own_are_sent_chunks():
    shared, own = (
        Operations(all_reduce_spec="xring", all_reduce_share_memory=share)
        for share in (True, False)
    )
    kinds = Counter(op.type for op in own.reducing)
    assert {op.type for op in shared.reducing} == {"AddN"}
    assert kinds["SplitV"] >= TOWERS
    # Every chunk goes on to all but one device, gradients of one chunk too.
    assert kinds["Identity"] >= VARIABLES * (TOWERS - 1)
    assert kinds["ConcatV2"] >= TOWERS


def test_gradients_are_narrowed_on_every_tower():
    flags = {"precision": "bf16"}
    compact, wide = Operations(**flags), Operations(**flags, compact_gradient_transfer=False)
    assert {op.inputs[0].dtype for op in compact.adding()} == {tf.bfloat16}
    assert {op.inputs[0].dtype for op in wide.adding()} == {tf.float32}


def test_relaxed_keeps_every_gradient_of_every_tower(cpu_devices):
    relaxed = Operations(variable_consistency="relaxed")
    kept = relaxed.by_device("AssignVariableOp")
    assert kept == dict.fromkeys(cpu_devices[:TOWERS], VARIABLES)
