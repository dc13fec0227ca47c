"""Checks that functions and attributes of plug-ins have the interfaces that cnnbench declares."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar, cast, get_args, get_origin, get_type_hints

from cnnbench.base.mismatch import describe_mismatch, value_text
from cnnbench.base.plugins import (
    PluginInterfaceError,
    containing_plugin_code,
    definition_location,
    is_defined_by_cnnbench,
)
from cnnbench.errors import UsageError

_F = TypeVar("_F", bound=Callable[..., Any])


# What a function that may return anything, such as `build` of a network, must not return.
_NO_RESULTS = (type(None), str, bytes, int, float, types.GeneratorType, types.CoroutineType)


# Functions that `with_checked_results` returns have this attribute, so they are wrapped only once.
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
        inner = _function_hint(returns)
        return result if inner is None else _checked_callable(result, *inner)

    vars(call)[_CHECKED] = True
    return cast("_F", call)


def _checked_callable(made: Any, returns: Any, takes: Sequence[str] | None) -> Any:
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
        # The parameters of a function implemented in C are not checked if it has no signature.
        return
    at = takes.index("*") if "*" in takes else len(takes)
    try:
        signature.bind(*takes[:at], **dict.fromkeys(takes[at + 1 :]))
    except TypeError as error:
        place = definition_location(function)
        raise PluginInterfaceError(f"{place} must take ({', '.join(takes)}): {error}") from None


def _function_hint(hint: Any) -> tuple[Any, Sequence[str] | None] | None:
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


def check_plugin_methods(plugin_class: type, interface: type) -> None:
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
        function = _function_hint(hint)
        if callable(value) and function is not None:
            object.__setattr__(plugin_object, name, with_checked_results(value, *function))


@functools.cache
def _type_hints(declared: Any) -> dict[str, Any]:
    return get_type_hints(declared, include_extras=True)
