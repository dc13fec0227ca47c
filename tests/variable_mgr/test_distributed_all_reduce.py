from __future__ import annotations

import pytest
import tensorflow as tf
from towers import columns_of

from cnnbench.errors import FlagError
from cnnbench.variable_mgr.aggregation.spec import AggregationSpec
from cnnbench.variable_mgr.all_reduce import parse_all_reduce_spec


def test_an_algorithm_that_cannot_work_is_pointed_at(make_manager):
    spec = AggregationSpec(all_reduce=parse_all_reduce_spec("copy:2K:pscpu#3"))
    with pytest.raises(FlagError, match=r"^--all_reduce_spec=copy:2K:pscpu#3: character 9, "):
        make_manager("distributed_all_reduce", 2, aggregation=spec)


def test_each_size_goes_its_own_way_and_the_order_stays(make_manager, trainable):
    """A copy is shared by all towers, a trees' sum of large tensors is made in a scope."""
    spec = AggregationSpec(all_reduce=parse_all_reduce_spec("copy:16:rechd"))
    manager = make_manager("distributed_all_reduce", 3, aggregation=spec)
    made = []

    @tf.function(autograph=False)
    def step(gradients):
        pairs = [
            list(zip(gradients, manager.trainable_variables_on_device(t), strict=True))
            for t in range(3)
        ]
        devices, state = manager.preprocess_device_grads(columns_of(pairs))
        made.extend(manager.get_gradients_to_apply(t, state) for t in range(len(devices)))
        return [gradient for gradient, _ in made[0]]

    values = [tf.fill(v.shape, float(i + 1)) for i, v in enumerate(trainable)]
    for value, mean in zip(values, step(values), strict=True):
        # The mean of equal values is the value, in the place where it was.
        assert mean.shape == value.shape
        assert abs(mean.numpy() - value.numpy()).max() < 1e-6
    for tower, pairs in enumerate(made):
        own = manager.trainable_variables_on_device(tower)
        assert [variable.ref() for _, variable in pairs] == [variable.ref() for variable in own]
    kinds = {
        "small": {op.type for op in _ancestors(made[0][1][0].op)},
        "large": {op.type for op in _ancestors(made[0][0][0].op)},
    }
    assert "AddN" in kinds["small"]
    assert "AddN" not in kinds["large"]
    assert "AddV2" in kinds["large"]


def _ancestors(op):
    seen, left = set(), [op]
    while left:
        op = left.pop()
        if op not in seen:
            seen.add(op)
            left += [tensor.op for tensor in op.inputs]
    return seen
