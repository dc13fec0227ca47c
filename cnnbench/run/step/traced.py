"""Functions that are traced once, before anything is timed.

Tracing again would take seconds of a timed step, and later steps would run another graph than the
one that was warmed up. What is called between timed steps is therefore traced for one signature,
and a call with another one is an error that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from cnnbench.errors import RetraceError


class TracedFunction:
    """A function traced for one signature.

    Args:
      name: for messages, such as "the training step".
      function: takes and returns nests of tensors; makes no variables, or it is traced twice.
      signature: for each argument a nest of tf.TensorSpec.
    """

    def __init__(
        self, name: str, function: Callable[..., Any], signature: Sequence[Any] = ()
    ) -> None:
        self._name = name
        self._signature = tuple(signature)
        self.traces = 0

        def counted(*arguments: Any) -> Any:
            self.traces += 1
            return function(*arguments)

        traced = tf.function(counted, autograph=False)
        self.concrete = traced.get_concrete_function(*self._signature)

    def __call__(self, *arguments: Any) -> Any:
        """Calls it with arguments of its signature; RetraceError for others."""
        try:
            return self.concrete(*arguments)
        except TypeError as error:
            changed = _changed(self._signature, arguments)
            if not changed:
                raise
            raise RetraceError(
                f"{self._name} would have to be traced again: {'; '.join(changed)}"
            ) from error


def _changed(signature: Any, arguments: Any) -> list[str]:
    before, now = (dict(_parts(value, "")) for value in (signature, arguments))
    return [
        f"{path} was {before.get(path, 'not there')} and is {now.get(path, 'not there')}"
        for path in dict.fromkeys((*before, *now))
        if before.get(path) != now.get(path)
    ]


def _parts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Path and "dtype[shape]" of every tensor in a nest, such as "0.features"."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, (list, tuple)):
        value = dict(enumerate(value))
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _parts(part, f"{path}.{name}" if path else f"{name}")
    elif value is not None:
        sizes = ", ".join("?" if size is None else str(size) for size in value.shape)
        yield path, f"{tf.as_dtype(value.dtype).name}[{sizes}]"
