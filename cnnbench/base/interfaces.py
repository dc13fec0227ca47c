"""Checks that functions and attributes of plug-ins have the interfaces that cnnbench declares.

`describe_mismatch` compares a value with an annotation. The other functions use it for results of
functions, and for attributes.
"""

from __future__ import annotations

import functools
import inspect
import numbers
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import (
    Annotated,
    Any,
    ClassVar,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from cnnbench.base.plugins import (
    PluginInterfaceError,
    containing_plugin_code,
    definition_location,
    is_defined_by_cnnbench,
)
from cnnbench.errors import UsageError

_F = TypeVar("_F", bound=Callable[..., Any])

_NUMBERS: dict[Any, type] = {int: numbers.Integral, float: numbers.Real}

# A function that may return anything, such as `build` of a network, must still not return one of
# these types.
_NO_RESULTS = (type(None), str, bytes, int, float, types.GeneratorType, types.CoroutineType)

# An attribute of functions that `with_checked_results` returns, so that no function is wrapped
# twice.
_CHECKED = "_cnnbench_checked"


def with_checked_results(function: _F, returns: Any, takes: Sequence[str] | None = None) -> _F:
    """Wraps a plug-in function so that every call checks the type of its result against the
    annotation `returns`.

    See `describe_mismatch`. `Any` accepts everything except None, text and numbers. If `returns` is
    the annotation of a function, the returned function is checked, too. Functions of cnnbench are
    returned unchanged.

    Args:
      takes: names of the arguments in all calls: positional arguments and, after "*", keyword
        arguments.

    Raises:
      PluginInterfaceError: the function does not accept these arguments. Calls raise it for a wrong
        result.
    """
    if is_defined_by_cnnbench(function):
        return function
    if takes is not None:
        _check_signature(function, takes)

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        place = definition_location(function)
        with containing_plugin_code(place):
            result = function(*args, **named)
        wrong = describe_mismatch(result, returns, (*args, *named.values()))
        if returns is Any and isinstance(result, _NO_RESULTS):
            hint = "; use return, not yield" if isinstance(result, types.GeneratorType) else ""
            wrong = f"a result, not {value_text(result)}{hint}"
        if wrong:
            raise PluginInterfaceError(f"{place} must return {wrong}")
        inner = _callable_parts(returns)
        return result if inner is None else _wrap_checked(result, *inner)

    vars(call)[_CHECKED] = True
    return cast("_F", call)


def _wrap_checked(made: Any, returns: Any, takes: Sequence[str] | None) -> Any:
    """Wraps a function or callable object of a plug-in so that every call checks the type of its
    result.

    For a callable object, the method `__call__` of its class is replaced.
    """
    method = inspect.getattr_static(type(made), "__call__", None)
    if not inspect.isfunction(method):
        return with_checked_results(made, returns, takes)
    if not hasattr(method, _CHECKED):
        takes = None if takes is None else ["self", *takes]
        type(made).__call__ = with_checked_results(method, returns, takes)
    return made


def _check_signature(function: Callable[..., Any], takes: Sequence[str]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        # A function implemented in C may have no signature; then its parameters cannot be checked.
        return
    at = takes.index("*") if "*" in takes else len(takes)
    try:
        signature.bind(*takes[:at], **dict.fromkeys(takes[at + 1 :]))
    except TypeError as error:
        place = definition_location(function)
        raise PluginInterfaceError(f"{place} must take ({', '.join(takes)}): {error}") from None


def _callable_parts(hint: Any) -> tuple[Any, Sequence[str] | None] | None:
    """Splits the annotation of a function, `Callable[arguments, result]`, into the annotation of
    the result and the names of the arguments. Returns None for all other annotations.

    The names are None if the annotation does not list arguments.
    """
    for part in (hint, *get_args(hint)):
        if get_origin(part) is Callable:
            arguments, returns = get_args(part)
            named = isinstance(arguments, list)
            return returns, [getattr(a, "__name__", str(a)) for a in arguments] if named else None
    return None


def guard_plugin_methods(plugin_class: type, interface: type) -> None:
    """Checks the signatures of a plug-in's methods, and wraps the methods so that calls check
    results.

    `interface` is the base class that declares the methods. See `with_checked_results`.
    """
    if is_defined_by_cnnbench(plugin_class):
        return
    for name, method in list(vars(plugin_class).items()):
        declared = getattr(interface, name, None)
        if inspect.isfunction(method) and inspect.isfunction(declared) and name[:2] != "__":
            returns = _type_hints(declared).get("return")
            returns = object if returns is type(None) else returns
            setattr(
                plugin_class, name, with_checked_results(method, returns, _argument_names(declared))
            )


def _argument_names(declared: Callable[..., Any]) -> list[str] | None:
    by_kind: dict[Any, list[str]] = {}
    for parameter in inspect.signature(declared).parameters.values():
        by_kind.setdefault(parameter.kind, []).append(parameter.name)
    first, second, by_name = (
        by_kind.pop(kind, [])
        for kind in (
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            inspect.Parameter.KEYWORD_ONLY,
        )
    )
    if by_kind:
        return None
    return [*first, *second, "*", *by_name] if by_name else [*first, *second]


def check_plugin_attributes(
    plugin_object: object, interface: type, subject: str, *unchecked: str
) -> None:
    """Checks the attributes of a plug-in's object, `plugin_object`, against the annotations of its
    interface. Integers must be positive.

    Functions in attributes are wrapped, so that later calls check their results. Attributes named
    in `unchecked` are not checked. Raises UsageError, which names `subject` and the first wrong
    attribute.
    """
    for name, hint in _type_hints(interface).items():
        if name in unchecked:
            continue
        value = getattr(plugin_object, name, None)
        wrong = "" if get_origin(hint) is ClassVar else describe_mismatch(value, hint)
        if wrong:
            raise UsageError(f"{subject}: {name} must be {wrong}")
        if type(value) is int and value < 1 and float not in (hint, *get_args(hint)):
            raise UsageError(f"{subject}: {name}={value} must be at least 1")
        function = _callable_parts(hint)
        if callable(value) and function is not None:
            object.__setattr__(plugin_object, name, with_checked_results(value, *function))


@functools.cache
def _type_hints(declared: Any) -> dict[str, Any]:
    return get_type_hints(declared, include_extras=True)


# Checks of values against annotations.


def describe_mismatch(value: Any, hint: Any, arguments: Sequence[Any] = ()) -> str:
    """Returns what a value should be if it does not match its annotation, or "" if it matches.

    A list is accepted for any sequence, and a value with shape and dtype for a tensor.

    Args:
      hint: annotation as returned by `typing.get_type_hints` with `include_extras`. `Annotated` may
        contain a function of the value and `arguments` that returns what the value should be; ""
        if it fits.
      arguments: arguments of the call that returned the value.
    """
    kind: Any = get_origin(hint) or hint
    args = get_args(hint)
    if kind is Annotated:
        return describe_mismatch(value, args[0], arguments) or str(args[1](value, arguments))
    if kind in (Union, types.UnionType):
        misfits = [describe_mismatch(value, hint_choice, arguments) for hint_choice in args]
        return "" if "" in misfits else misfits[0]
    # Every value matches `Any` and a type variable.
    if not isinstance(kind, type) or kind is Any:
        return ""
    # The items of a collection are checked, too: (text for messages, item, annotation of the item).
    parts: Iterable[tuple[str, Any, Any]] = ()
    if kind.__name__ == "Callable":
        fits = callable(value)
    elif issubclass(kind, Mapping):
        fits = isinstance(value, Mapping)
        if fits and args:
            parts = [(f"for {value_text(name)} ", item, args[1]) for name, item in value.items()]
            parts += [("as a key ", name, args[0]) for name in value]
    elif issubclass(kind, Sequence) and kind is not str:
        fits = isinstance(value, range if kind is range else (list, tuple))
        if fits and args:
            hints = args if kind is tuple and ... not in args else args[:1] * len(value)
            fits = len(value) == len(hints)
            parts = [("", *pair) for pair in zip(value, hints, strict=False)]
    else:
        fits = isinstance(value, _NUMBERS.get(kind, kind)) or (
            is_tensor(value)
            and (
                kind.__module__.startswith("tensorflow")
                or (kind is float and len(value.shape) == 0)
            )
        )
    if not fits:
        shape = f" of {len(args)}" if kind is tuple and ... not in args else ""
        # The class `tf.data.Dataset` of TensorFlow has the __name__ DatasetV2, which users do not
        # know.
        name = kind.__name__.removesuffix("V2")
        article = "an" if name[0] in "aeiouAEIO" else "a"
        other = f" of {len(value)}" if shape and isinstance(value, list | tuple) else ""
        return f"{article} {name}{shape}, not {value_text(value)}{other}"
    for where, part, of in parts:
        wrong = describe_mismatch(part, of, arguments)
        if wrong:
            return where + wrong
    return ""


def is_tensor(value: Any) -> bool:
    """Whether a value has the attributes `shape` and `dtype`, as tensors and arrays have."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def tensor_sizes(value: Any) -> Sequence[int | None] | None:
    """Returns the size of each dimension of a tensor, with None for each unknown size. Returns None
    if even the rank of the tensor is unknown.
    """
    shape = value.shape
    if getattr(shape, "rank", 0) is None:
        return None
    return [None if size is None else int(size) for size in shape]


def sizes_agree(one: Sequence[Any] | None, other: Sequence[Any] | None) -> bool:
    """Whether two shapes from `tensor_sizes` can be equal: unknown sizes match every size."""
    if one is None or other is None:
        return True
    return len(one) == len(other) and all(
        None in pair or pair[0] == pair[1] for pair in zip(one, other, strict=True)
    )


def value_text(value: Any) -> str:
    """Describes a value in a message. A tensor is described by its dtype and shape."""
    if is_tensor(value):
        known = tensor_sizes(value)
        shape = "of any rank" if known is None else known
        dtype = getattr(value.dtype, "name", value.dtype)
        return f"{'an' if str(dtype)[0] == 'i' else 'a'} {dtype} tensor {shape}"
    text = repr(value) if value is None or isinstance(value, (str, int, float)) else ""
    return text if 0 < len(text) <= 40 else f"a {type(value).__name__}"
