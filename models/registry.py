"""Models by name: those of `cnnbench.models.networks`, of plug-in files and of entry points."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from cnnbench.base import plugins
from cnnbench.base.text.messages import nearest
from cnnbench.errors import FlagError, UsageError
from cnnbench.models import networks
from cnnbench.models.model import Model

ENTRY_POINT_GROUP = "cnnbench.models"

Key = tuple[str, str]  # (dataset, name)

_factories: dict[Key, Callable[[], Model]] = {}


def register_model(name: str, dataset: str, factory: Callable[[], Model]) -> None:
    """Makes a model available to ``--model``; names are unique within a data set.

    Args:
      dataset: the data set it is for, such as ``imagenet`` or ``cifar10``.
      factory: makes the model; usually its class.
    """
    plugins.check_name("a model", name)
    plugins.check_name(f"the data set of model {name}", dataset)
    key = (dataset, name)
    if key in _factories:
        raise UsageError(f"a model {name} for {dataset} is registered already; choose another name")
    _factories[key] = factory


def register_variants(make: Callable[..., Model], variants: Iterable[Sequence[Any]]) -> None:
    """Registers the models that `make` makes of tuples of arguments, under their own names."""
    for arguments in variants:
        factory = functools.partial(make, *arguments)
        register_model(factory().name, factory().dataset, factory)


def get_model(name: str, dataset: str) -> Model:
    """The model of that name; loads installed entry points only if the name is unknown otherwise.

    Raises:
      FlagError: there is none.
      UsageError: the registered factory makes no usable `Model`.
    """
    _load_builtin()
    key = (dataset, name)
    if key not in _factories:
        plugins.load_entry_points(ENTRY_POINT_GROUP)
    if key not in _factories:
        raise FlagError("model", name, _unknown(name, dataset))
    origin = plugins.origin("model_plugin", key) or f"--model={name}"
    with plugins.reported(UsageError, origin), plugins.running(origin):
        model = _factories[key]()
        if not isinstance(model, Model):
            raise UsageError(f"its factory made a {type(model).__name__}, not a cnnbench Model")
        model.validate()
    return model


def model_names(dataset: str) -> tuple[str, ...]:
    """Names of a data set's models, sorted."""
    return tuple(sorted(name for owner, name in _all() if owner == dataset))


def all_names() -> tuple[str, ...]:
    """Names of the models of all data sets, sorted."""
    return tuple(sorted({name for _, name in _all()}))


def datasets() -> tuple[str, ...]:
    """Data sets that have models, sorted."""
    return tuple(sorted({dataset for dataset, _ in _all()}))


def datasets_of(name: str) -> tuple[str, ...]:
    """Data sets that have a model of that name, sorted; none if it is unknown."""
    _load_builtin()
    if not _owners(name):
        plugins.load_entry_points(ENTRY_POINT_GROUP)
    return _owners(name)


def load_plugin(path: str) -> tuple[str, ...]:
    """Names that a Python file registers by `register_model`; see `plugins.load`."""
    keys = plugins.load(path, "model_plugin")
    return tuple(name for _, name in keys)


@functools.cache
def _load_builtin() -> None:
    for module in plugins.modules_of(networks):
        importlib.import_module(f"{networks.__name__}.{module}")


def _all() -> Iterable[Key]:
    """Data set and name of every model, with those of entry points."""
    _load_builtin()
    plugins.load_entry_points(ENTRY_POINT_GROUP)
    return _factories


def _owners(name: str) -> tuple[str, ...]:
    return tuple(sorted(owner for owner, model in _factories if model == name))


def _unknown(name: str, dataset: str) -> str:
    owners = _owners(name)
    if owners:
        return f"is a model for {' and '.join(owners)}, not for {dataset}; give its --data_name"
    names = model_names(dataset)
    near = nearest(name, names)
    hint = f"did you mean {near}? " if near else ""
    listed = ", ".join(names) or "none"
    return f"unknown; {hint}models for {dataset}: {listed}"


plugins.add_kind(
    plugins.Kind(
        flag="model_plugin",
        noun="model",
        call="cnnbench.models.register_model(name, dataset, factory)",
        table=lambda: _factories,
        prepare=_load_builtin,
    )
)
