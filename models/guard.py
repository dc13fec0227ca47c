"""Calls of plug-in models, whose errors become one line with file, class and method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cnnbench.base import plugins
from cnnbench.errors import BenchmarkError, UsageError
from cnnbench.models.model import Model

_COLUMN = "a float32 tensor [n], a value per example"


def guarded(model: Model, origin: str) -> Model:
    """The same model; its methods raise only errors of cnnbench.

    What cannot be used of their results is refused too. A mistake in `host_metrics`, which is
    called when something has been measured, is a BenchmarkError, any other a UsageError.

    Args:
      model: changed in place: attributes of the object cover the methods of its class.
      origin: the plug-in, such as "--model_plugin=own.py".
    """
    for name, check in _CHECKS.items():
        method = getattr(model, name)
        if not isinstance(method, _Guarded):  # a factory may return the same object each time
            setattr(model, name, _Guarded(model, name, method, check, origin))
    return model


class _Guarded:
    """One method of one model.

    Args:
      check: says what is wrong with a result, given the model, the result and the positional
        arguments; "" for nothing.
    """

    def __init__(
        self,
        model: Model,
        name: str,
        method: Callable[..., Any],
        check: Callable[[Model, Any, Sequence[Any]], str],
        origin: str,
    ) -> None:
        self._model = model
        self._method = method
        self._check = check
        self._where = f"{origin}: {type(model).__name__}.{name}()"
        self._error = BenchmarkError if name == "host_metrics" else UsageError

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Calls the method."""
        passes: list[type[BaseException]] = [UsageError, BenchmarkError, *plugins.out_of_memory()]
        with plugins.code(lambda line: self._error(f"{self._where} raises {line}"), *passes):
            result = self._method(*args, **named)
        wrong = self._check(self._model, result, args)
        if wrong:
            raise self._error(f"{self._where} {wrong}")
        return result


def _shown(value: Any) -> str:
    """A value in a message: tensors as dtype and shape, others as text."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"a {getattr(value.dtype, 'name', value.dtype)} tensor {list(_sizes(value) or '?')}"
    text = repr(value) if value is None or isinstance(value, (str, int, float)) else ""
    return text if 0 < len(text) <= 40 else f"a {type(value).__name__}"


def _sizes(value: Any) -> Sequence[int | None] | None:
    """Sizes of a tensor, None for unknown ones; None if their number is unknown."""
    shape = value.shape
    if getattr(shape, "rank", 0) is None:
        return None
    return [None if size is None else int(size) for size in shape]


def _examples(labels: Any) -> int | None:
    """Number of examples with labels; None if unknown."""
    first = next(iter(labels.values()), None) if isinstance(labels, Mapping) else labels
    sizes = _sizes(first) if hasattr(first, "shape") else None
    return sizes[0] if sizes else None


def _is_column(value: Any, labels: Any) -> bool:
    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        return False
    sizes = _sizes(value)
    if value.dtype != "float32" or (sizes is not None and len(sizes) != 1):
        return False
    return not sizes or None in (sizes[0], _examples(labels)) or sizes[0] == _examples(labels)


def _wrong_outputs(model: Model, result: Any, args: Sequence[Any]) -> str:
    if result is None or isinstance(result, (str, bytes, int, float)):
        return f"must return the outputs of the network, not {_shown(result)}"
    return ""


def _wrong_loss(model: Model, result: Any, args: Sequence[Any]) -> str:
    if _is_column(result, args[-1]):
        return ""
    return f"must return {_COLUMN}, not {_shown(result)}"


def _wrong_metrics(model: Model, result: Any, args: Sequence[Any]) -> str:
    if not isinstance(result, Mapping):
        return f"must return a mapping of metrics by name, not {_shown(result)}"
    if set(result) != set(model.metric_names):
        named = ", ".join(model.metric_names) or "none"
        returned = ", ".join(map(str, result)) or "none"
        return f"must return the metrics that metric_names has, {named}; it returns {returned}"
    for name, value in result.items():
        if not _is_column(value, args[-1]):
            return f"must return {_COLUMN}, for {name}, not {_shown(value)}"
    return ""


def _wrong_rows(model: Model, result: Any, args: Sequence[Any]) -> str:
    if not isinstance(result, Mapping):
        return f"must return a mapping of tensors by name, not {_shown(result)}"
    for name, value in result.items():
        sizes = _sizes(value) if hasattr(value, "shape") else ()
        if sizes is None:
            continue
        examples = _examples(args[-1])
        if not sizes or (None not in (sizes[0], examples) and sizes[0] != examples):
            return f"must return a tensor [n, ...], a row per example, for {name}, not " + _shown(
                value
            )
    return ""


def _wrong_host_metrics(model: Model, result: Any, args: Sequence[Any]) -> str:
    if not isinstance(result, Mapping):
        return f"must return a mapping of numbers by name, not {_shown(result)}"
    for name, value in result.items():
        if not isinstance(name, str) or not name.isprintable():
            return f"must name its metrics by printable characters, not {name!r}"
        try:
            float(value)
        except Exception:
            return f"must return a number for {name}, not {_shown(value)}"
    if model.host_metric_names and set(result) != set(model.host_metric_names):
        named, returned = ", ".join(model.host_metric_names), ", ".join(result) or "none"
        return f"must return the metrics that host_metric_names has, {named}; it returns {returned}"
    return ""


_CHECKS: dict[str, Callable[[Model, Any, Sequence[Any]], str]] = {
    "build": _wrong_outputs,
    "loss": _wrong_loss,
    "metrics": _wrong_metrics,
    "host_rows": _wrong_rows,
    "host_metrics": _wrong_host_metrics,
}
