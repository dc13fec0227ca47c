"""Registry of models by name: `cnnbench.models.networks`, plug-in files and entry points."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar, overload

from cnnbench.base import plugins
from cnnbench.base.registry import Registry
from cnnbench.base.text import unknown_name_reason
from cnnbench.errors import FlagError, UsageError
from cnnbench.models import networks
from cnnbench.models.model import Model

Key = tuple[str, str]  # (dataset, name)

MODELS: Registry[Key, Callable[[], Model]] = Registry(
    "model",
    "cnnbench.models.register_model(name, dataset, factory)",
    flag="model",
    group="cnnbench.models",
    own=networks.__name__,
)
"""Functions that create the models, by data set and name."""

# For each prefix of model names: a function (name, data set) -> model, and names for completion.
_families: dict[str, tuple[Callable[[str, str], Model], tuple[str, ...]]] = {}

F = TypeVar("F", bound=Callable[[], Model])


@overload
def register_model(name: str, dataset: str, factory: F) -> F: ...


@overload
def register_model(name: str, dataset: str) -> Callable[[F], F]: ...


def register_model(name: str, dataset: str, factory: Any = None) -> Any:
    """Registers a model for ``--model``. Names must be unique within a data set.

    Without `factory`, returns a decorator for the class of the model.

    Args:
      dataset: the data set for the model, such as ``imagenet`` or ``cifar10``.
      factory: function that creates the model; usually its class.
    """

    def register(factory: F) -> F:
        plugins.check_name("a model", name)
        plugins.check_name(f"the data set of model {name}", dataset)
        MODELS.add((dataset, name), factory, f"{name} for {dataset}")
        return factory

    return register if factory is None else register(factory)


def register_family(
    prefix: str, make: Callable[[str, str], Model], names: Sequence[str] = ()
) -> None:
    """Registers a function that creates any model whose name begins with `prefix`.

    The models exist for every data set.

    Args:
      make: function that creates a model from its full name and a data set. It raises UsageError if
        there is no such model.
      names: some full names, for shell completion.
    """
    _families[prefix] = (make, tuple(names))


def register_variants(make: Callable[..., Model], variants: Iterable[Sequence[Any]]) -> None:
    """Registers the model ``make(*arguments)``, under its own name, for each of `variants`."""
    for arguments in variants:
        factory = partial(make, *arguments)
        register_model(factory().name, factory().dataset, factory)


def get_model(name: str, dataset: str) -> Model:
    """Creates the model with the given name. Loads entry points only if the name is unknown.

    Raises:
      FlagError: there is no such model.
      UsageError: the registered factory does not create a valid `Model`.
    """
    _import_family(name)
    key = (dataset, name)
    factory = MODELS.get(key) or _family_factory(name, dataset)
    if factory is None:
        MODELS.load_packages()
        factory = MODELS.get(key)
    if factory is None:
        raise FlagError("model", name, _unknown_reason(name, dataset))
    plugin = plugins.plugin_of_object("model", key)
    block = plugins.containing_plugin_code(plugin) if plugin else contextlib.nullcontext()
    with plugins.reporting_plugin_errors(UsageError, plugin or f"--model={name}"), block:
        model = factory()
        if not isinstance(model, Model):
            raise UsageError(
                f"the factory of the model returned a {type(model).__name__}, not a cnnbench Model"
            )
        model.validate()
    return model


def _family_factory(name: str, dataset: str) -> Callable[[], Model] | None:
    for prefix, (make, _) in _families.items():
        if name.startswith(prefix):
            # Prepare functions may fork a process, so they run before the code of the model, which
            # may start threads.
            for prepare in plugins.before_loading:
                prepare()
            return partial(make, name, dataset)
    return None


def model_names(dataset: str) -> tuple[str, ...]:
    """Sorted names of the models that are registered for a data set."""
    return tuple(sorted(name for owner, name in _all_keys() if owner == dataset))


def all_model_names() -> tuple[str, ...]:
    """Sorted names of the models of all data sets."""
    of_families = (name for _, names in _families.values() for name in names)
    return tuple(sorted({*(name for _, name in _all_keys()), *of_families}))


def datasets() -> tuple[str, ...]:
    """Sorted names of all data sets for which models are registered."""
    return tuple(sorted({dataset for dataset, _ in _all_keys()}))


def datasets_of(name: str) -> tuple[str, ...]:
    """Sorted names of the data sets with a model of this name; empty if the name is unknown."""
    _import_family(name)
    if not _datasets_with(name):
        MODELS.load_packages()
    return _datasets_with(name)


def load_plugin(path: str) -> tuple[str, ...]:
    """Runs a plug-in file; returns the names of the models that it registers."""
    return tuple(name for _, name in plugins.load_plugin_file(path)["model"])


def _import_family(name: str) -> None:
    """Imports the module that defines a model, such as ``networks.resnet`` for resnet50.

    The module's name is the beginning of the model's name. If this module defines no model with the
    name, all modules of networks are imported.
    """
    for module in plugins.submodule_names(networks):
        if name.startswith(module):
            importlib.import_module(f"{networks.__name__}.{module}")
    if not _datasets_with(name):
        MODELS.load_own()


def _all_keys() -> Iterable[Key]:
    """Returns (data set, name) of every registered model, including models from entry points."""
    MODELS.load_own()
    MODELS.load_packages()
    return MODELS


def _datasets_with(name: str) -> tuple[str, ...]:
    return tuple(sorted(owner for owner, model in MODELS if model == name))


def _unknown_reason(name: str, dataset: str) -> str:
    owners = _datasets_with(name)
    if owners:
        hint = "give its --data_name"
        if plugins.plugin_of_object("data set", dataset):
            hint += f", or register it for {dataset} (cnnbench docs data)"
        return f"is a model for {' and '.join(owners)}, not for {dataset}; {hint}"
    known = unknown_name_reason(name, model_names(dataset), f"models for {dataset}:")
    return f"unknown; {known}"
