"""Contexts of logical devices, and algorithms traced on them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from cnnbench.variable_mgr import all_reduce
from cnnbench.variable_mgr.all_reduce import ReduceContext, algorithms, registry


@pytest.fixture
def separate_memories() -> bool:
    """Asked for by tests whose devices shall have a memory each, as GPUs and processes have."""
    return True


@pytest.fixture
def make_context(cpu_devices, request) -> Callable[..., ReduceContext]:
    """make_context(n, **fields): a context of the first n logical devices."""
    share = "separate_memories" not in request.fixturenames

    def make(count: int, **fields: Any) -> ReduceContext:
        devices = cpu_devices[:count]
        given = {"devices": devices, "cpu_devices": devices, "share_memory": share, **fields}
        return ReduceContext(**given)

    return make


def _import_all() -> None:
    for name in all_reduce.names():
        importlib.import_module(f"{algorithms.__name__}.{name}")


@pytest.fixture
def registered(monkeypatch) -> Iterator[dict[str, Any]]:
    """The registrations, to which a test may add some for itself."""
    # Now, because what a module registers while the test runs is forgotten after it.
    _import_all()
    known = set(sys.modules)
    monkeypatch.setattr(registry, "_factories", dict(registry._factories))
    yield registry._factories
    for name in set(sys.modules) - known:
        if name.startswith(algorithms.__name__):
            del sys.modules[name]


@dataclass(frozen=True)
class Part:
    """Chunk number `chunk` of the value on a device, or of a sum; whole values have chunk 0."""

    chunk: int
    of: Any


@dataclass(frozen=True)
class Sum:
    """An addition on a device."""

    device: str
    terms: tuple[Any, ...]


@dataclass(frozen=True)
class Hop:
    """A tensor sent to a device."""

    device: str
    what: Any


@dataclass(frozen=True)
class Block:
    """Consecutive chunks joined on a device."""

    device: str
    chunks: tuple[Any, ...]


@dataclass
class Traced:
    """The graph of an algorithm.

    Attributes:
      devices: of the context.
      operations: all of the function's ops but arguments and the identities of results.
      results: results[i][d] is what the algorithm returned for tensor i on device d.
      inputs: the arguments, those of tensor i one after the other.
    """

    devices: tuple[str, ...]
    operations: list[tf.Operation]
    results: list[list[tf.Tensor]]
    inputs: list[tf.Tensor]

    def of_type(self, *types: str) -> list[tf.Operation]:
        return [op for op in self.operations if op.type in types]

    def chunks(self, result: tf.Tensor) -> list[Any]:
        """Where the chunks of a result come from, as `source` says it."""
        if result.op.type == "Reshape" and result.op.inputs[0].op.type == "ConcatV2":
            return [self.source(part) for part in list(result.op.inputs[0].op.inputs)[:-1]]
        return [self.source(result)]

    def source(self, tensor: tf.Tensor) -> Any:
        """What a tensor comes from: a Part, Sum, Hop or Block of others, or a device's value."""
        for number, given in enumerate(self.inputs):
            if tensor is given:
                return self.devices[number % len(self.devices)]
        op = tensor.op
        if op.type == "SplitV":
            return Part(tensor.value_index, self.source(op.inputs[0]))
        if op.type == "Reshape":
            return self.source(op.inputs[0])
        if op.type == "Identity":
            return Hop(op.device, self.source(op.inputs[0]))
        if op.type == "ConcatV2":
            return Block(op.device, tuple(map(self.source, list(op.inputs)[:-1])))
        assert op.type in ("AddV2", "AddN"), op.type
        return Sum(op.device, tuple(map(self.source, op.inputs)))


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
            context.devices,
            [op for op in operations if op.type != "Placeholder" and id(op) not in returned],
            results,
            graph.inputs,
        )

    return make


@pytest.fixture(scope="session")
def flow() -> Any:
    """The words of `Traced.source`: flow.Part, flow.Sum, flow.Hop and flow.Block."""
    return SimpleNamespace(Part=Part, Sum=Sum, Hop=Hop, Block=Block)
