"""Determines the layers, FLOPs and bytes of the operations in a profiled step.

Names of operations contain the layer, in the forward pass (`tower_0/conv0/...`) and in the backward
pass (`gradient_tape/tower_0/conv0/...`). Profiles contain the same names.

Times are parts of the step's wall time, as in `cnnbench.records.profiles`.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from cnnbench.models.declaration import FlopCounts, innermost_scope, scope_flops
from cnnbench.plan import RunPlan
from cnnbench.records.profiles import (
    COPIES,
    FORWARD,
    OUTSIDE,
    REDUCTION,
    REST,
    TO_INPUT,
    TO_KERNEL,
    UPDATE,
    StepPartKey,
)
from cnnbench.run.observe.operations import is_collective, is_transfer, source_operation_name

TOWER = re.compile(r"(?:^|/)tower_(\d+)/(.+)")
"""Matches names of operations in a tower: the number of the tower, and the rest of the name."""

_BACKWARD = re.compile(r"(^|/)gradient_tape/")
_PASSED_ON = ("Cast", "Identity", "Reshape")
_DEVICE = re.compile(r"device:(\w+:\d+)$")
_DECORATION = re.compile(r"^_(Mkl)?(Native)?")
_PRODUCT = re.compile(r"Conv\d?[Dd]|MatMul|Einsum")
# Operations that rearrange tensors for cnnbench's own algorithms of convolution gradients on CPUs.
_LAYOUT = ("Transpose", "ReverseV2", "Pad", "ConcatV2", "StridedSlice", "DepthToSpace")
_KINDS = (
    (re.compile("BatchNorm"), "batch norm"),
    (re.compile("Relu"), "ReLU"),
    (re.compile("Pool"), "pooling"),
    (re.compile(r"^Add|^BiasAdd"), "addition"),
    (re.compile("^Cast"), "cast"),
    (re.compile("Pad|Slice|Concat|Transpose|Tile|Pack|Split"), "moving data"),
    (re.compile("Softmax|Sigmoid|Tanh|Gelu|Erf|Selu"), "other activation"),
)
_OTHER = "other"
_WEIGHTS = ("ReadVariableOp", "Const")
# Operations that move no bytes: their output shares the memory of their input, or they access no
# memory.
_NO_TRAFFIC = (
    "ReadVariableOp",
    "AssignVariableOp",
    "Identity",
    "Reshape",
    "Squeeze",
    "ExpandDims",
    "Shape",
    "Const",
    "NoOp",
    "StopGradient",
    "PreventGradient",
    "Switch",
    "Merge",
)

_INTO_BRANCHES = ("Switch", "Identity")
_RESOURCE = 20  # DT_RESOURCE in TensorFlow's enumeration of dtypes.


class OperationWork(NamedTuple):
    """The layer and the pass to which an operation of a step belongs, and its memory traffic.

    Attributes:
      part: the layer, the reduction or the update that contains the operation.
      is_product: whether the operation is a convolution or matrix product, which are the only
        operations with FLOPs.
      bytes: bytes of all inputs and outputs. A tensor that is used twice is counted once.
    """

    part: StepPartKey
    is_product: bool
    bytes: int


class OperationWorkFinder:
    """Determines the layer, the pass, the FLOPs and the memory traffic of a step's operations.

    Attributes:
      image_flops: FLOPs of one image in a step, by layer; 0 for scopes without FLOPs.

    Args:
      traced: graph of the step as traced, with shapes.
      partitions: GraphDefs after TensorFlow's optimization and partitioning, with fused operations.
      kernels: shapes of the kernels, by layer.
    """

    def __init__(
        self,
        traced: Any,
        partitions: Iterable[Any],
        image_flops: Mapping[str, FlopCounts],
        kernels: Mapping[str, tuple[int, ...]],
    ) -> None:
        self._traced = {operation.name: operation for operation in traced.get_operations()}
        partitions = tuple(partitions)
        self._nodes = {node.name: node for graph in partitions for node in graph.node}
        self._called = {
            node.name
            for graph in partitions
            for function in graph.library.function
            for node in function.node_def
        }
        self._backward = find_backward_operations(traced)
        self.image_flops = image_flops
        self._kernels = kernels

    def __call__(self, name: str, type: str) -> OperationWork:
        """Determines the layer, the pass and the memory traffic of an operation in a profile.

        `name` and `type` are the name and the type of the operation.
        """
        moved = self._moved_bytes(name)
        if is_transfer(type):
            kind = REDUCTION if source_operation_name(name) in self._backward else COPIES
            return OperationWork(StepPartKey(REST, kind, OUTSIDE), False, moved)
        plain = _DECORATION.sub("", type)
        layer = layer_of_operation(name, self.image_flops)
        is_product = bool(_PRODUCT.search(plain))
        product = self._fused_product(name) if is_product else None
        if product is not None:
            layer = layer_of_operation(product.name, self.image_flops)
        if layer == REST:
            kind = self._kind_outside(name, plain)
            return OperationWork(StepPartKey(REST, kind, OUTSIDE), False, moved)
        direction = FORWARD
        if name in self._backward or "gradient_tape/" in name:
            direction = TO_KERNEL if self._is_kernel_gradient(name, plain, layer) else TO_INPUT
        lays_out = plain in _LAYOUT and direction != FORWARD and layer in self._kernels
        if is_product or lays_out:
            kernel = self._kernels.get(layer, ())
            kind = "dense" if len(kernel) == 2 else "matrix product"
            if len(kernel) == 4:
                kind = "depthwise convolution" if "Depthwise" in plain else "convolution"
                kind += f" {kernel[0]}x{kernel[1]}"
        else:
            kind = next((kind for pattern, kind in _KINDS if pattern.search(plain)), _OTHER)
        # If tensors are rearranged for a product, only the product's own traffic is counted.
        part = StepPartKey(layer, kind, direction)
        return OperationWork(part, is_product, 0 if lays_out else moved)

    def is_of_step(self, name: str) -> bool:
        """Whether an operation in a profile belongs to the step, not to the input pipeline."""
        return (
            TOWER.search(name) is not None
            or source_operation_name(name) in self._traced
            or name in self._nodes
            or name.rpartition("/")[2] in self._called
        )

    def device_of_operation(self, name: str) -> str:
        """Returns the device of an operation of the step, such as "cpu:0"; "" if unknown."""
        node = self._nodes.get(name)
        match = _DEVICE.search("" if node is None else node.device)
        return match[1].lower() if match else ""

    def result_dtype(self, name: str) -> str:
        """Returns the dtype of an operation's first result, such as "bfloat16"; "" if unknown."""
        operation = self._traced.get(name)
        outputs = () if operation is None else operation.outputs
        return str(outputs[0].dtype.name) if outputs else ""

    def count_operations(self) -> dict[str, int]:
        """Counts the operations in the graph partitions, by type."""
        return dict(sorted(Counter(node.op for node in self._nodes.values()).items()))

    def _fused_product(self, name: str) -> Any:
        """Finds the convolution or matrix product with which an operation, such as ReLU, was fused.

        Returns the traced operation; None if the operation was not fused with a product.
        """
        waiting = [self._traced[name]] if name in self._traced else []
        while waiting:
            operation = waiting.pop()
            if _PRODUCT.search(operation.type):
                return operation
            before = (tensor.op for tensor in operation.inputs)
            waiting += [operation for operation in before if operation.name not in self._nodes]
        return None

    def _is_kernel_gradient(self, name: str, plain: str, layer: str) -> bool:
        """Whether a gradient is the gradient of a layer's weights, not of its input."""
        if "BackpropFilter" in plain or plain == "BiasAddGrad":
            return True
        if "BackpropInput" in plain:
            return False
        operation = self._traced.get(name)
        if operation is None:
            return False
        if _PRODUCT.search(plain):
            return not any(self._is_layer_kernel(tensor) for tensor in operation.inputs)
        if plain in (*_LAYOUT, "Reshape"):
            users = [
                consumer
                for consumer in operation.outputs[0].consumers()
                if consumer.name in self._backward
                and layer_of_operation(consumer.name, self.image_flops) == layer
            ]
            if users:
                return self._is_kernel_gradient(users[0].name, users[0].type, layer)
        kernel = math.prod(self._kernels.get(layer, ()))
        sizes = [tensor.shape.num_elements() for tensor in operation.outputs]
        return layer in self._kernels and sizes == [kernel]

    def _is_layer_kernel(self, tensor: Any) -> bool:
        """Whether a tensor is a layer's kernel, perhaps after casts and changes of its layout.

        Synthetic images are also a variable, but have a different shape.
        """
        source = find_original_operation(tensor, *_LAYOUT)
        shape = source.outputs[0].shape
        sizes = map(math.prod, self._kernels.values())
        return source.type in _WEIGHTS and len(shape) > 1 and shape.num_elements() in sizes

    def _kind_outside(self, name: str, plain: str) -> str:
        if plain == "L2Loss":
            return "L2 loss"
        if plain not in _NO_TRAFFIC and self._count_variables(name):
            return UPDATE
        return REDUCTION if name in self._backward or is_collective(plain) else _OTHER

    def _moved_bytes(self, name: str) -> int:
        """Bytes of the inputs and outputs of an operation; 0 if it moves no data."""
        operation, node = self._traced.get(name), self._nodes.get(name)
        variables = self._count_variables(name)
        if node is None or node.op in _NO_TRAFFIC or (operation is None and not variables):
            return 0
        if operation is not None and operation.type in _NO_TRAFFIC:
            return 0
        inputs = dict.fromkeys(map(self._traced_tensor, node.input))
        sizes = [_tensor_bytes(tensor.deref()) for tensor in inputs if tensor is not None]
        written = 0 if operation is None else sum(map(_tensor_bytes, operation.outputs))
        # An update reads and writes its variables, each of which has the size of the gradient.
        return sum(sizes) + written + 2 * variables * max(sizes, default=0)

    def _count_variables(self, name: str) -> int:
        """Number of variables in the inputs of an operation."""
        operation, node = self._traced.get(name), self._nodes.get(name)
        if operation is not None:
            return sum(tensor.dtype.name == "resource" for tensor in operation.inputs)
        if node is None or node.op in _INTO_BRANCHES or is_transfer(node.op):
            return 0
        nodes = (self._nodes.get(self._find_source(name)[0]) for name in node.input)
        return sum(node is not None and node.attr["T"].type == _RESOURCE for node in nodes)

    def _traced_tensor(self, name: str) -> Any:
        """Returns a hashable reference to the traced tensor to which input `name` of a node refers.

        None if the tensor is unknown, or if the input is a control dependency.
        """
        operation, index = self._find_source(name)
        operation_traced = self._traced.get(operation)
        if operation_traced is None or index >= len(operation_traced.outputs):
            return None
        return operation_traced.outputs[index].ref()

    def _find_source(self, name: str) -> tuple[str, int]:
        """Finds the operation that computed an input of a tf.cond branch, and its output number."""
        while True:
            operation, _, index = name.partition(":")
            node = self._nodes.get(operation)
            if node is not None and node.op == "_Recv":
                node = self._nodes.get(source_operation_name(operation))
            if operation in self._traced or node is None or node.op not in _INTO_BRANCHES:
                return operation, int(index or 0)
            name = node.input[0]


def make_work_finder(plan: RunPlan, graph: Any, partitions: Iterable[Any]) -> OperationWorkFinder:
    """Creates the `OperationWorkFinder` of a step from its traced graph and its partitions."""
    network = plan.network
    weights = [v for v in network.spec.variables if v.trainable and len(v.shape) in (2, 4)]
    kernels = {weight.name.rpartition("/")[0]: weight.shape for weight in weights}
    flops = scope_flops(network.model, network.spec.num_classes, training=plan.work.trains)
    return OperationWorkFinder(graph, partitions, flops, kernels)


def _tensor_bytes(tensor: Any) -> int:
    if tensor.dtype.name == "resource" or not tensor.shape.is_fully_defined():
        return 0
    return int(tensor.shape.num_elements() * tensor.dtype.size)


def flops_by_part(
    works: Iterable[OperationWork], flops: Mapping[str, FlopCounts]
) -> dict[StepPartKey, int]:
    """Divides the FLOPs of each layer among forward pass, input gradient and kernel gradient.

    `flops` are FLOPs of a step on all devices, by layer.
    """
    products: defaultdict[str, dict[str, StepPartKey]] = defaultdict(dict)
    for work in works:
        if work.is_product:
            products[work.part.layer][work.part.direction] = work.part
    counted: Counter[StepPartKey] = Counter()
    for layer, parts in products.items():
        of_layer = flops.get(layer, FlopCounts())
        for direction, count in zip((FORWARD, TO_INPUT, TO_KERNEL), of_layer, strict=True):
            # In attention, both gradients of a product may be classified as the same pass, which
            # then gets the FLOPs of both.
            other = TO_INPUT if direction == TO_KERNEL else TO_KERNEL
            part = parts.get(direction) or (None if direction == FORWARD else parts.get(other))
            if count and part is not None:
                counted[part] += count
    return dict(counted)


def layer_of_operation(operation: str, scopes: Collection[str]) -> str:
    """Finds the layer of an operation: the innermost of `scopes` that contains it.

    Without such a scope, it is the operation's kind or, outside of towers, `REST`.
    """
    match = TOWER.search(operation)
    if match is None:
        return REST
    path = match[2].split("/")
    if layer := innermost_scope(path[:-1], scopes):
        return layer
    return re.sub(r"_\d+$", "", path[0]).removesuffix("Grad")


def find_backward_operations(graph: Any) -> set[str]:
    """Names of all operations in a graph that depend on a gradient."""
    names: set[str] = set()
    for operation in graph.get_operations():
        inputs = (tensor.op.name for tensor in operation.inputs)
        if _BACKWARD.search(operation.name) or any(name in names for name in inputs):
            names.add(operation.name)
    return names


def find_original_operation(tensor: Any, *transparent: str) -> Any:
    """Finds the operation that computed a value, before casts, reshapes and `transparent` types."""
    operation = tensor.op
    while operation.type in (*_PASSED_ON, *transparent):
        operation = operation.inputs[0].op
    return operation
