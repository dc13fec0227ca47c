"""Functions that are traced once, copies of traced towers, and loops in a traced function.

Tracing again would make a timed step seconds longer, and later steps would run a different graph
than the warm-up. Therefore, functions that are called between timed steps are traced for one
signature. A call with another signature raises an error that names the difference.

Tracing creates every operation and its gradients individually from Python. An import creates all
operations at once. For ResNet-50, tracing a tower takes 1.1 s of CPU time, and a copy takes 0.2 s.
A copy uses the variables, batch and seed of its own tower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import tensorflow as tf

from cnnbench.base.interrupts import converting_errors_to_interrupts
from cnnbench.errors import RetraceError, first_line
from cnnbench.models.graph import Reader
from cnnbench.models.spec import VariableSpec

# Functions that are traced once, before measurements.


class TracedFunction:
    """A TensorFlow function that is traced for one signature when it is created.

    Args:
      name: name for error messages, such as "the training step".
      function: takes and returns nests of tensors. It must not create variables, because TensorFlow
        traces functions that create variables twice.
      signature: for each argument, a nest of tf.TensorSpec.
    """

    def __init__(
        self, name: str, function: Callable[..., Any], signature: Sequence[Any] = ()
    ) -> None:
        self._name = name
        self._signature = tuple(signature)
        self.traces = 0

        def count_trace_and_call(*arguments: Any) -> Any:
            self.traces += 1
            return function(*arguments)

        traced = tf.function(count_trace_and_call, autograph=False)
        self.concrete = traced.get_concrete_function(*self._signature)

    def __call__(self, *arguments: Any) -> Any:
        """Calls the function. Raises RetraceError if the arguments do not fit its signature."""
        try:
            return self.concrete(*arguments)
        except TypeError as error:
            changed = _describe_signature_changes(self._signature, arguments)
            if not changed:
                raise
            raise RetraceError(
                f"{self._name} would have to be traced again: {'; '.join(changed)}"
            ) from error


def _describe_signature_changes(signature: Any, arguments: Any) -> list[str]:
    """Returns texts about tensors in `arguments` whose dtype or shape differs from `signature`."""
    before, now = (dict(_tensor_descriptions(value, "")) for value in (signature, arguments))
    return [
        f"{path} was {before.get(path, 'missing')} and is {now.get(path, 'missing')}"
        for path in dict.fromkeys((*before, *now))
        if before.get(path) != now.get(path)
    ]


def _tensor_descriptions(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yields the path (such as "0.features") and "dtype[shape]" of every tensor in a nest."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, (list, tuple)):
        value = dict(enumerate(value))
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _tensor_descriptions(part, f"{path}.{name}" if path else f"{name}")
    elif value is not None:
        sizes = ", ".join("?" if size is None else str(size) for size in value.shape)
        yield path, f"{tf.as_dtype(value.dtype).name}[{sizes}]"


# Copies of the first tower's graph, which take less time than tracing each tower.

_R = TypeVar("_R")

_WITH_BODIES = frozenset({"StatelessWhile", "StatelessIf", "StatelessCase"})


class TowerCopier(Generic[_R]):
    """Builds the towers of one traced function: traces the first tower, and copies its graph.

    The towers must differ only in device and inputs.

    Args:
      trace: builds the first tower in the current name scope, on the current device.
        ``trace(read, *inputs)`` returns a nest of tensors, and of values that are equal for all
        towers.
      tell: prints a line if TensorFlow rejects a copy. All towers are then traced.
    """

    def __init__(self, trace: Callable[..., _R], tell: Callable[[str], object]) -> None:
        self._trace = trace
        self._tell = tell
        self._traced = False
        self._original: _CopyableTowerGraph | None = None

    def __call__(self, read: Reader, *inputs: Any) -> _R:
        """Builds one tower in the current name scope, on the current device.

        `inputs` are nests with the inputs of the tower except its variables. They contain at least
        one tensor, and all tensors belong to the traced function.
        """
        tensors = [x for x in tf.nest.flatten(inputs) if isinstance(x, tf.Tensor)]
        assert all(map(tf.is_symbolic_tensor, tensors)), "a captured value looks like any tower's"
        if self._original is not None:
            try:
                with converting_errors_to_interrupts():
                    return self._original.copy(read, tensors)  # type: ignore[no-any-return]
            except Exception as error:  # Versions of TensorFlow raise different errors.
                self._give_up_copying(error)
        if self._traced:
            return self._trace(read, *inputs)
        graph = tensors[0].graph
        reads: list[tuple[VariableSpec, tf.DType, tf.Tensor]] = []
        # Contains the positions (in the graph) of the operations that read variables.
        of_reads: set[int] = set()

        def read_and_record(spec: VariableSpec, dtype: tf.DType) -> tf.Tensor:
            begin = len(graph.get_operations())
            reads.append((spec, dtype, read(spec, dtype)))
            of_reads.update(range(begin, len(graph.get_operations())))
            return reads[-1][-1]

        start = len(graph.get_operations())
        result = self._trace(read_and_record, *inputs)
        self._traced = True
        try:
            with converting_errors_to_interrupts():
                added = [o for n, o in enumerate(graph.get_operations()) if n not in of_reads]
                body = _operations_to_copy(added[start:])
                if body:
                    self._original = _CopyableTowerGraph(graph, body, reads, tensors, result)
        except Exception as error:
            self._give_up_copying(error)
        return result

    def _give_up_copying(self, error: Exception) -> None:
        self._original = None
        reason = f"{type(error).__name__}: {first_line(error)}"
        self._tell(
            f"every tower is traced, because TensorFlow rejects a copy of the graph: {reason}"
        )


def _operations_to_copy(operations: Sequence[tf.Operation]) -> list[tf.Operation]:
    """Returns the operations that a copy of the tower repeats; empty if it cannot be copied."""
    # Placeholders are captured tensors of the function, which are the same for all towers.
    body = [operation for operation in operations if operation.type != "Placeholder"]
    # Copies of a stateful operation, such as tf.random.uniform, would draw the same numbers.
    # Bodies of loops and branches contain the name of the first tower's device.
    # If the operations of a tower are on several devices, their devices in a copy are unknown.
    if any(operation.op_def.is_stateful or operation.type in _WITH_BODIES for operation in body):
        return []
    return body if len({operation.device for operation in body}) == 1 else []


class _CopyableTowerGraph:
    """A copyable graph, without devices, of the tower traced in the current name scope.

    Args:
      graph: graph of the traced function.
      body: operations of the tower, except operations that read variables.
      reads: variable, dtype and value of each read.
      inputs: the other inputs of the tower, as a flat list.
      result: result of the tower, a nest.
    """

    def __init__(
        self,
        graph: tf.Graph,
        body: Sequence[tf.Operation],
        reads: Sequence[tuple[VariableSpec, tf.DType, tf.Tensor]],
        inputs: Sequence[tf.Tensor],
        result: Any,
    ) -> None:
        self._graph = graph
        self._reads = reads
        self._inputs = inputs
        self._result = result
        self._scope = f"{graph.get_name_scope()}/"
        self._inside = {operation.name for operation in body}
        # Maps names of outside tensors in the definition to their names in the traced graph.
        self._outer: dict[str, str] = {}
        self._nodes = [self._make_node_definition(operation) for operation in body]

    def copy(self, read: Reader, inputs: Sequence[tf.Tensor]) -> Any:
        """Adds a copy of the tower in the current name scope, on the current device."""
        own = {before.name: now for before, now in zip(self._inputs, inputs, strict=True)}
        for spec, dtype, before in self._reads:
            own[before.name] = read(spec, dtype)
        parts = tf.nest.flatten(self._result, expand_composites=True)
        shapes = {part.name: part.shape for part in parts if isinstance(part, tf.Tensor)}
        wanted = [name for name in shapes if name.partition(":")[0] in self._inside]
        tensors = {name: self._outer_tensor(name, own) for name in shapes if name not in wanted}
        scope = f"{self._graph.get_name_scope()}/"

        def renamed(name: str) -> str:
            return name.replace(self._scope, scope, 1)

        outputs = tf.graph_util.import_graph_def(
            self._make_graph_definition(renamed),
            input_map={key: self._outer_tensor(name, own) for key, name in self._outer.items()},
            return_elements=[renamed(name) for name in wanted],
            name="",  # Without a prefix, operations get the names that a trace would give them.
        )
        for name, tensor in zip(wanted, outputs, strict=True):
            # A GraphDef does not contain shapes from `set_shape`, so they are set again.
            tensor.set_shape(shapes[name])
            tensors[name] = tensor
        own_parts = [tensors[x.name] if isinstance(x, tf.Tensor) else x for x in parts]
        return tf.nest.pack_sequence_as(self._result, own_parts, expand_composites=True)

    def _outer_tensor(self, name: str, own: dict[str, tf.Tensor]) -> tf.Tensor:
        if name.startswith("^"):
            return self._graph.get_operation_by_name(name[1:]).outputs[0]
        return own[name] if name in own else self._graph.get_tensor_by_name(name)

    def _make_node_definition(self, operation: tf.Operation) -> Any:
        """Returns an operation's NodeDef without device, and with new names of outer inputs."""
        node = operation.node_def
        node.input[:] = [self._rename_input(name) for name in node.input]
        node.device = ""
        if "_class" in node.attr:
            constraints = [c for c in node.attr["_class"].list.s if c.decode()[5:] in self._inside]
            del node.attr["_class"]
            if constraints:
                node.attr["_class"].list.s.extend(constraints)
        return node

    def _rename_input(self, name: str) -> str:
        operation, _, number = name.removeprefix("^").partition(":")
        if operation in self._inside:
            return name
        elsewhere = f"elsewhere/{operation.replace('/', '.')}"
        if name.startswith("^"):
            self._outer[f"^{elsewhere}"] = name
            return f"^{elsewhere}"
        self._outer[f"{elsewhere}:{number or 0}"] = f"{operation}:{number or 0}"
        return f"{elsewhere}:{number or 0}"

    def _make_graph_definition(self, renamed: Callable[[str], str]) -> Any:
        definition = tf.Graph().as_graph_def()
        for original in self._nodes:
            node = definition.node.add()
            node.CopyFrom(original)
            node.name = renamed(node.name)
            node.input[:] = [renamed(name) for name in node.input]
            if "_class" in node.attr:
                old = node.attr["_class"].list.s
                old[:] = [renamed(c.decode()).encode() for c in old]
        return definition


# Loops in a traced function, so that one call from the host runs several steps.


def build_loop(count: int, call: Callable[[tf.Tensor], Any], like: Any) -> Any:
    """Builds a loop in the traced function. Each iteration begins when the previous one has ended.

    Args:
      count: number of iterations.
      call: traces the body of the loop; called once. Its argument is the number of the iteration
        from 0, an int32 scalar. It returns a nest of tensors, whose parts may be None.
      like: a nest with the structure, shapes and dtypes of the result of `call`.

    Returns:
      A nest with the structure of `like`. The rows of its tensors, [count, ...], are the results of
      the iterations.
    """
    parts = tf.nest.flatten(like)
    tensor_places = [place for place, part in enumerate(parts) if part is not None]
    rows = [
        tf.TensorArray(parts[place].dtype, count, element_shape=parts[place].shape)
        for place in tensor_places
    ]

    def body(number: tf.Tensor, rows: list[tf.TensorArray]) -> tuple[tf.Tensor, Any]:
        results = tf.nest.flatten(call(number))
        tensors = [results[place] for place in tensor_places]
        with tf.control_dependencies(tensors):
            return number + 1, [
                row.write(number, value) for row, value in zip(rows, tensors, strict=True)
            ]

    first = (tf.constant(0), rows)
    _, rows = tf.while_loop(lambda number, _: number < count, body, first, parallel_iterations=1)
    for place, row in zip(tensor_places, rows, strict=True):
        parts[place] = row.stack()
    return tf.nest.pack_sequence_as(like, parts)


def select_nest(number: tf.Tensor, nests: Sequence[Any]) -> Any:
    """Selects one of several nests of tensors by its number, an int32 scalar of the graph.

    All nests have the same structure, shapes and dtypes.
    """
    lists = [[part for part in tf.nest.flatten(nest) if part is not None] for nest in nests]
    branches = [lambda parts=parts: [tf.identity(part) for part in parts] for parts in lists]
    values = iter(tf.nest.flatten(tf.switch_case(number, branches)))
    return tf.nest.map_structure(lambda part: None if part is None else next(values), nests[0])
