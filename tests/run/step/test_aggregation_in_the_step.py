"""What the flags of gradient aggregation do to the traced step of a run."""

from __future__ import annotations

from collections import Counter

import pytest
import tensorflow as tf

from cnnbench.flags import Params
from cnnbench.run.driver.benchmark_cnn import BenchmarkCNN

pytestmark = pytest.mark.usefixtures("quick_start")

# lenet has eight variables.
VARIABLES = 8
TOWERS = 4


class Operations:
    """The step of a run, by the devices and scopes of its operations."""

    def __init__(self, **flags: object) -> None:
        own = {"num_gpus": TOWERS, "variable_update": "replicated", **flags}
        common = {"model": "lenet", "device": "cpu", "batch_size": 2, "num_warmup_batches": 0}
        self.step = BenchmarkCNN(Params.from_dict({**common, **own})).build().step
        self.all: list[tf.Operation] = self.step.graph.get_operations()

    @property
    def reducing(self) -> list[tf.Operation]:
        """Those of the all-reduce itself."""
        return [op for op in self.all if op.name.startswith("allreduce_")]

    @property
    def scopes(self) -> list[str]:
        return sorted({op.name.partition("/")[0] for op in self.reducing})

    def adding(self) -> list[tf.Operation]:
        return [op for op in self.reducing if op.type in ("AddN", "AddV2")]

    def count(self, kind: str) -> int:
        return sum(op.type == kind for op in self.all)

    def by_device(self, kind: str) -> Counter[str]:
        return Counter(op.device for op in self.all if op.type == kind)


@pytest.fixture(scope="module")
def plain() -> Operations:
    return Operations()


def test_by_default_each_gradient_is_copied_to_one_device(plain, cpu_devices) -> None:
    assert [op.type for op in plain.reducing] == ["AddN"] * VARIABLES
    assert {len(op.inputs) for op in plain.reducing} == {TOWERS}
    assert Counter(op.device for op in plain.reducing) == dict.fromkeys(cpu_devices[:TOWERS], 2)
    assert plain.scopes == [f"allreduce_{i}" for i in range(VARIABLES)]
    # What packing, deferring and narrowing would add.
    assert not {"ConcatV2", "SplitV", "Cast", "AssignVariableOp"} & {op.type for op in plain.all}


def test_repacking_joins_on_every_tower_and_adds_once_per_pack(cpu_devices) -> None:
    packs = 3
    packed = Operations(gradient_repacking=packs)
    # A pack is joined on each tower; a tensor that straddles two is joined again at the end.
    joined = packed.by_device("ConcatV2")
    assert set(joined) == set(cpu_devices[:TOWERS])
    assert min(joined.values()) >= packs
    assert packed.by_device("SplitV").keys() == joined.keys()
    assert [op.type for op in packed.reducing] == ["AddN"] * packs


def test_small_gradients_travel_together(plain, cpu_devices) -> None:
    # The kernel and the bias of the first layer, 9.6 kB and 128 bytes.
    small = Operations(agg_small_grads_max_bytes=16384)
    assert small.by_device("ConcatV2") == dict.fromkeys(cpu_devices[:TOWERS], 1)
    assert len(small.adding()) == VARIABLES - 1
    one = Operations(agg_small_grads_max_bytes=16384, agg_small_grads_max_group=1)
    assert len(one.adding()) == VARIABLES
    assert one.count("ConcatV2") == 0


def test_consecutive_gradients_share_a_scope() -> None:
    merged = Operations(allreduce_merge_scope=3)
    assert merged.scopes == [f"allreduce_{i}" for i in range(3)]
    per_scope = Counter(op.name.partition("/")[0] for op in merged.adding())
    assert per_scope == {"allreduce_0": 3, "allreduce_1": 3, "allreduce_2": 2}


def test_a_hierarchical_copy_adds_in_halves_first() -> None:
    copied = Operations(hierarchical_copy=True)
    assert len(copied.adding()) == 3 * VARIABLES
    assert {len(op.inputs) for op in copied.adding()} == {TOWERS // 2}
    # Tensor 0 is added on devices 0 and 2, opposite of each other.
    first = [op for op in copied.adding() if op.name.startswith("allreduce_0/")]
    assert [op.device[-1] for op in first] == ["0", "2", "0"]


def test_gcp_v100_has_its_own_pairs() -> None:
    wired = Operations(hierarchical_copy=True, network_topology="gcp_v100", num_gpus=8)
    first = [op for op in wired.adding() if op.name.startswith("allreduce_0/")]
    assert [op.device[-1] for op in first] == ["0", "5", "0"]


def test_devices_with_memories_of_their_own_are_sent_chunks() -> None:
    shared, own = (
        Operations(all_reduce_spec="xring", all_reduce_share_memory=share)
        for share in (True, False)
    )
    kinds = Counter(op.type for op in own.reducing)
    assert {op.type for op in shared.reducing} == {"AddV2"}
    assert kinds["SplitV"] >= TOWERS
    # Every chunk goes on to all but one device, gradients of one chunk too.
    assert kinds["Identity"] >= VARIABLES * (TOWERS - 1)
    assert kinds["ConcatV2"] >= TOWERS


def test_group_sizes_make_two_levels() -> None:
    alone = Operations(all_reduce_spec="pscpu/psgpu")
    grouped = Operations(all_reduce_spec="pscpu/psgpu", all_reduce_group_size=2)
    assert {len(op.inputs) for op in alone.adding()} == {TOWERS}
    assert {len(op.inputs) for op in grouped.adding()} == {2}
    assert len(grouped.adding()) == 3 * VARIABLES


def test_gradients_are_narrowed_on_every_tower() -> None:
    flags = {"precision": "bf16"}
    compact, wide = Operations(**flags), Operations(**flags, compact_gradient_transfer=False)
    assert {op.inputs[0].dtype for op in compact.adding()} == {tf.bfloat16}
    assert {op.inputs[0].dtype for op in wide.adding()} == {tf.float32}


def test_relaxed_keeps_every_gradient_of_every_tower(cpu_devices) -> None:
    relaxed = Operations(variable_consistency="relaxed")
    kept = relaxed.by_device("AssignVariableOp")
    assert kept == dict.fromkeys(cpu_devices[:TOWERS], VARIABLES)


def test_the_algorithm_is_the_one_that_was_asked_for() -> None:
    hybrid = Operations(
        variable_update="distributed_all_reduce", all_reduce_spec="copy:1K:collective"
    )
    kinds = Counter(op.type for op in hybrid.reducing)
    # Four biases, of which the largest has 4 KiB and goes with the kernels.
    assert kinds["AddN"] + kinds["CollectiveReduce"] // TOWERS == VARIABLES
    assert kinds["AddN"] > 1
    assert kinds["CollectiveReduce"] > TOWERS


@pytest.mark.parametrize("spec", ["collective/xring", "copy/collective"])
def test_no_part_of_a_collective_is_pruned(spec) -> None:
    """If it were, the step would wait for it for ever."""
    whole = Operations(all_reduce_spec=spec, all_reduce_group_size=2 if "/" in spec else 0)
    needed: set[tf.Operation] = set()
    left = [tensor.op for tensor in whole.step.function.outputs]
    while left:
        op = left.pop()
        if op not in needed:
            needed.add(op)
            left += [*op.control_inputs, *(tensor.op for tensor in op.inputs)]
    collectives = {op for op in whole.all if op.type == "CollectiveReduce"}
    assert len(collectives) == VARIABLES * (2 if spec == "copy/collective" else TOWERS)
    assert collectives <= needed
