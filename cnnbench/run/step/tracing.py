"""Functions that are traced once, before measurements, and loops in a traced function.

Tracing again would make a timed step seconds longer, and later steps would run a different graph
than the warm-up. Therefore, functions that are called between timed steps are traced for one
signature. A call with another signature raises an error that names the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from cnnbench.errors import RetraceError


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
            changed = _changes(self._signature, arguments)
            if not changed:
                raise
            raise RetraceError(
                f"{self._name} would have to be traced again: {'; '.join(changed)}"
            ) from error


def _changes(signature: Any, arguments: Any) -> list[str]:
    """Returns texts about tensors in `arguments` whose dtype or shape differs from `signature`."""
    before, now = (dict(_descriptions(value, "")) for value in (signature, arguments))
    return [
        f"{path} was {before.get(path, 'missing')} and is {now.get(path, 'missing')}"
        for path in dict.fromkeys((*before, *now))
        if before.get(path) != now.get(path)
    ]


def _descriptions(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yields the path (such as "0.features") and "dtype[shape]" of every tensor in a nest."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, (list, tuple)):
        value = dict(enumerate(value))
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _descriptions(part, f"{path}.{name}" if path else f"{name}")
    elif value is not None:
        sizes = ", ".join("?" if size is None else str(size) for size in value.shape)
        yield path, f"{tf.as_dtype(value.dtype).name}[{sizes}]"


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
            return number + 1, [r.write(number, v) for r, v in zip(rows, tensors, strict=True)]

    first = (tf.constant(0), rows)
    _, rows = tf.while_loop(lambda number, _: number < count, body, first, parallel_iterations=1)
    for place, row in zip(tensor_places, rows, strict=True):
        parts[place] = row.stack()
    return tf.nest.pack_sequence_as(like, parts)


def select_nest(number: tf.Tensor, nests: Sequence[Any]) -> Any:
    """Selects one of several nests of tensors: the nest at position `number`, an int32 scalar of
    the graph.

    All nests have the same structure, shapes and dtypes.
    """
    lists = [[part for part in tf.nest.flatten(nest) if part is not None] for nest in nests]
    branches = [lambda parts=parts: [tf.identity(part) for part in parts] for parts in lists]
    values = iter(tf.nest.flatten(tf.switch_case(number, branches)))
    return tf.nest.map_structure(lambda part: None if part is None else next(values), nests[0])
