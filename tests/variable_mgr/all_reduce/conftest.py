"""Contexts of logical devices, and algorithms traced on them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import tensorflow as tf

from cnnbench.variable_mgr import all_reduce
from cnnbench.variable_mgr.all_reduce import ReduceContext, algorithms, registry


@pytest.fixture
def make_context(cpu_devices) -> Callable[..., ReduceContext]:
    """make_context(n, **fields): a context of the first n logical devices."""

    def make(count: int, **fields: Any) -> ReduceContext:
        devices = cpu_devices[:count]
        return ReduceContext(**{"devices": devices, "cpu_devices": devices, **fields})

    return make


@pytest.fixture
def registered(monkeypatch) -> Iterator[dict[str, Any]]:
    """The registrations, to which a test may add some for itself."""
    # Now, because what a module registers while the test runs is forgotten after it.
    for name in all_reduce.names():
        importlib.import_module(f"{algorithms.__name__}.{name}")
    known = set(sys.modules)
    monkeypatch.setattr(registry, "_factories", dict(registry._factories))
    yield registry._factories
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
