"""A small network's worth of variables, and managers made for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from oracle import LOCAL_SGD, LOCAL_SGD_PLUGIN

from cnnbench.models.spec import Initializer, VariableSpec
from cnnbench.variable_mgr import VariableMgrSpec, create, load_plugin
from cnnbench.variable_mgr.aggregation.spec import AggregationSpec
from cnnbench.variable_mgr.all_reduce import parse_all_reduce_spec
from cnnbench.variable_mgr.base import VariableMgr
from cnnbench.variable_mgr.strategies.spec import CrossDeviceSpec


@pytest.fixture(scope="session")
def declared() -> tuple[VariableSpec, ...]:
    """Kernel, bias, scale, embedding and one moment, of different sizes."""
    return (
        VariableSpec("conv0/kernel", (3, 3, 2, 4), Initializer.variance_scaling()),
        VariableSpec("conv0/bias", (4,), Initializer.constant(0.0)),
        VariableSpec("batchnorm0/gamma", (4,), Initializer.constant(1.0), weight_decay=False),
        VariableSpec(
            "batchnorm0/moving_mean",
            (4,),
            Initializer.constant(0.0),
            trainable=False,
            weight_decay=False,
            statistic=True,
        ),
        VariableSpec("affine0/kernel", (4, 5), Initializer.truncated_normal(0.1)),
    )


@pytest.fixture(scope="session")
def trainable(declared) -> tuple[VariableSpec, ...]:
    return tuple(v for v in declared if v.trainable)


# Operations that wait for their like on other devices.
TOGETHER = ("CollectiveReduce", "NcclAllReduce")


@pytest.fixture(scope="session")
def needed() -> Callable[[tf.Graph], set[str]]:
    """needed(graph): names of the operations that the outputs of a traced function need."""

    def names(graph: tf.Graph) -> set[str]:
        seen: set[str] = set()
        left = [tensor.op for tensor in graph.outputs]
        while left:
            op = left.pop()
            if op.name not in seen:
                seen.add(op.name)
                left += [*op.control_inputs, *(tensor.op for tensor in op.inputs)]
        return seen

    return names


@pytest.fixture(scope="session")
def call_whole(needed) -> Callable[..., Any]:
    """call_whole(function, *arguments): calls a tf.function, no collective of which is unused.

    TensorFlow would prune it and the others would wait for it for ever: that is a failure
    here, before anything runs.
    """

    def call(function: Any, *arguments: Any) -> Any:
        graph = function.get_concrete_function(*arguments).graph
        together = {op.name for op in graph.get_operations() if op.type in TOGETHER}
        assert together <= needed(graph)
        return function(*arguments)

    return call


@pytest.fixture(scope="session")
def address() -> Callable[[tf.Tensor], int]:
    """address(tensor): where an eager CPU tensor lies in memory."""
    return lambda tensor: np.asarray(memoryview(tensor)).__array_interface__["data"][0]


Maker = Callable[..., VariableMgr]


@pytest.fixture
def make_manager(declared, cpu_devices) -> Maker:
    """make_manager(mode, towers or devices, **fields of the spec): a manager with its variables."""

    def make(
        mode: str,
        towers: int | Sequence[str],
        variables: Sequence[VariableSpec] = declared,
        **fields: object,
    ) -> VariableMgr:
        if mode == LOCAL_SGD:
            load_plugin(LOCAL_SGD_PLUGIN)
        if mode == "distributed_all_reduce":
            hybrid = parse_all_reduce_spec("psgpu:16:xring")
            fields = {"aggregation": AggregationSpec(all_reduce=hybrid), **fields}
        if mode == "mirrored_strategy":
            # Its collectives could not run on other devices in another test.
            simple = CrossDeviceSpec(ops="reduction_to_one_device")
            fields = {"cross_device": simple, **fields}
        if isinstance(towers, int):
            towers = [cpu_devices[t % len(cpu_devices)] for t in range(towers)]
        spec = VariableMgrSpec(
            variable_update=mode,
            devices=tuple(towers),
            cpu_device=cpu_devices[0],
            **fields,
        )
        manager = create(spec, variables)
        manager.create_variables()
        return manager

    return make
