"""Variables of a small network and managers of them; stages and all-reduce algorithms, traced."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from oracle import LOCAL_SGD, LOCAL_SGD_PLUGIN
from registries import kept

from cnnbench.models.spec import Initializer, VariableSpec
from cnnbench.variable_mgr import VariableMgrSpec, all_reduce, create, load_plugin
from cnnbench.variable_mgr.all_reduce import (
    ReduceContext,
    algorithms,
    parse_all_reduce_spec,
    registry,
)
from cnnbench.variable_mgr.base import VariableMgr
from cnnbench.variable_mgr.distribute import CrossDeviceSpec
from cnnbench.variable_mgr.packing import AggregationSpec
from cnnbench.variable_mgr.registry import find_mode


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
            mode=find_mode(mode),
            devices=tuple(towers),
            cpu_device=cpu_devices[0],
            **fields,
        )
        manager = create(spec, variables)
        manager.create_variables()
        return manager

    return make


@pytest.fixture
def operations_of(cpu_devices):
    """operations_of(function, forms, towers): the ops that function(tensors[tower][index]) adds.

    `forms` are (shape, dtype) of the gradients of every tower. What the function
    returns is kept alive; the placeholders and the identities of outputs are left out.
    """

    def operations(function, forms, towers):
        def step(tensors):
            # A pass-through op per tower, because placeholders are not on any device.
            local = []
            for device, own in zip(cpu_devices, tensors, strict=False):
                with tf.device(device):
                    local.append([tf.raw_ops.Snapshot(input=t) for t in own])
            return function(local)

        signature = [[tf.TensorSpec(shape, dtype) for shape, dtype in forms]] * towers
        graph = tf.function(step, autograph=False).get_concrete_function(signature).graph
        ignored = ("Placeholder", "Identity", "Snapshot", "Const", "NoOp")
        return [op for op in graph.get_operations() if op.type not in ignored]

    return operations


@pytest.fixture
def make_context(cpu_devices) -> Callable[..., ReduceContext]:
    """make_context(n, **fields): a context of the first n logical devices."""

    def make(count: int, **fields: Any) -> ReduceContext:
        devices = cpu_devices[:count]
        return ReduceContext(**{"devices": devices, "cpu_devices": devices, **fields})

    return make


@pytest.fixture
def nccl_says(monkeypatch) -> Callable[[str], None]:
    """nccl_says(text): sets the error of NCCL's kernel on a CPU, which shows whether it exists."""
    add = tf.raw_ops.NcclAllReduce

    def say(text: str) -> None:
        def refuse(**attributes: Any) -> tf.Tensor:
            if not tf.executing_eagerly():
                return add(**attributes)
            raise tf.errors.NotFoundError(None, None, text)

        monkeypatch.setattr(tf.raw_ops, "NcclAllReduce", refuse)

    return say


@pytest.fixture
def with_nccl(nccl_says) -> None:
    """A TensorFlow with NCCL, whichever is installed."""
    nccl_says("Could not find device for node. All kernels registered: device='GPU'")


@pytest.fixture
def registered() -> Iterator[dict[str, Any]]:
    """The registrations, to which a test may add some for itself."""
    # Now, because what a module registers while the test runs is forgotten after it.
    for name in all_reduce.names():
        importlib.import_module(f"{algorithms.__name__}.{name}")
    known = set(sys.modules)
    with kept(registry.ALGORITHMS):
        yield registry.ALGORITHMS
    for name in set(sys.modules) - known:
        if name.startswith(algorithms.__name__):
            del sys.modules[name]


@dataclass
class Traced:
    """The graph of an algorithm.

    Attributes:
      operations: all of the function's ops but arguments and the identities of results.
      results: results[i][d] is what the algorithm returned for tensor i on device d.
    """

    operations: list[tf.Operation]
    results: list[list[tf.Tensor]]

    def of_type(self, *types: str) -> list[tf.Operation]:
        return [op for op in self.operations if op.type in types]


@pytest.fixture
def trace() -> Callable[..., Traced]:
    """trace(name, context, shape, tensors=1, first_index=0): the traced algorithm."""

    def make(
        name: str,
        context: ReduceContext,
        shape: tuple[int, ...],
        tensors: int = 1,
        first_index: int = 0,
    ) -> Traced:
        algorithm = all_reduce.create(name, context)
        results: list[list[tf.Tensor]] = []

        @tf.function(autograph=False)
        def step(values):
            results.extend(algorithm(tensor, first_index + i) for i, tensor in enumerate(values))
            return results

        spec = [[tf.TensorSpec(shape)] * len(context.devices)] * tensors
        graph = step.get_concrete_function(spec).graph
        operations = graph.get_operations()
        returned = {id(op) for op in operations[-tensors * len(context.devices) :]}
        return Traced(
            [op for op in operations if op.type != "Placeholder" and id(op) not in returned],
            results,
        )

    return make
