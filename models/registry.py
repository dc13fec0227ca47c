"""Models by name: the built-in ones, plug-in files and installed entry points."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import importlib
import importlib.metadata
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path

from cnnbench.errors import FlagError, UsageError
from cnnbench.models.model import Model

ENTRY_POINT_GROUP = "cnnbench.models"

# Each of these modules registers its models when imported. A new network is a new module and
# a line here.
BUILTIN_MODULES = (
    *("trivial", "lenet", "alexnet", "overfeat", "vgg", "inception"),
    *("resnet", "official_resnet", "resnet_cifar", "densenet"),
)

Key = tuple[str, str]  # (dataset, name)

_factories: dict[Key, Callable[[], Model]] = {}
_plugins: dict[Path, tuple[str, tuple[Key, ...]]] = {}  # file: digest of its text, its models
_loaded: set[str] = set()  # which of "builtin" and "entry points" have been registered


def register_model(name: str, dataset: str, factory: Callable[[], Model]) -> None:
    """Makes a model available to ``--model``.

    Args:
      name: what the user types.
      dataset: the data set it is for (``imagenet``, ``cifar10``); one name may serve
        several data sets.
      factory: makes the model; usually its class.

    Raises:
      UsageError: the data set already has a model of that name.
    """
    key = (dataset, name)
    if key in _factories:
        raise UsageError(f"a model {name} for {dataset} is registered already; choose another name")
    _factories[key] = factory


def get_model(name: str, dataset: str) -> Model:
    """The model of that name.

    Installed entry points are only loaded when the name is not known without them.

    Raises:
      FlagError: there is none (the message lists the data set's models and the nearest
        name), or the registered factory does not make a usable `Model`.
    """
    _load_builtin()
    key = (dataset, name)
    if key not in _factories:
        try:
            _load_entry_points()
        except UsageError as error:
            raise FlagError("model", name, str(error)) from error
    if key not in _factories:
        raise FlagError("model", name, _unknown(name, dataset))
    try:
        model = _factories[key]()
        if not isinstance(model, Model):
            raise UsageError(f"its factory made a {type(model).__name__}, not a cnnbench Model")
        model.validate()
    except Exception as error:
        raise FlagError("model", name, _one_line(error)) from error
    return model


def model_names(dataset: str) -> tuple[str, ...]:
    """Names of a data set's models, sorted.

    Raises:
      UsageError: an installed entry point fails.
    """
    _load_builtin()
    _load_entry_points()
    return _names(dataset)


def datasets() -> tuple[str, ...]:
    """Data sets that have models, sorted.

    Raises:
      UsageError: an installed entry point fails.
    """
    _load_builtin()
    _load_entry_points()
    return tuple(sorted({dataset for dataset, _ in _factories}))


def load_plugin(path: str) -> tuple[str, ...]:
    """Runs a Python file that calls `register_model`.

    Loading the same text twice does nothing; an edited file replaces what it registered.
    Nothing stays registered when the file fails.

    Args:
      path: the file.

    Returns:
      Names of the models it registered.

    Raises:
      FlagError: no such file, the file raises, registers nothing, or registers a name that
        is taken.
    """
    _load_builtin()
    file = Path(path).resolve()
    try:
        source = file.read_bytes()
    except OSError as error:
        reason = f"cannot be read ({error.strerror}); give the path of a Python file"
        raise FlagError("model_plugin", path, reason) from error
    digest = hashlib.sha256(source).hexdigest()
    known = _plugins.get(file)
    if known and known[0] == digest:
        return tuple(name for _, name in known[1])
    for key in known[1] if known else ():
        _factories.pop(key, None)
    _plugins.pop(file, None)
    try:
        with _registering() as added:
            _execute(file, source)
    except Exception as error:
        raise FlagError("model_plugin", path, f"fails: {_one_line(error)}") from error
    if not added:
        reason = "registers no model; call cnnbench.models.register_model(name, dataset, factory)"
        raise FlagError("model_plugin", path, reason)
    _plugins[file] = (digest, tuple(added))
    return tuple(name for _, name in added)


def _execute(file: Path, source: bytes) -> None:
    # Compiled by hand rather than imported: no bytecode file appears beside the user's file,
    # and an edit within the clock tick of the last load is seen.
    module = types.ModuleType(f"cnnbench_model_plugin_{file.stem}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module  # dataclasses and pickle look classes up there
    try:
        exec(compile(source, str(file), "exec"), module.__dict__)
    except SystemExit as error:
        raise UsageError(f"it ends the program (SystemExit {error.code})") from error


@contextlib.contextmanager
def _registering() -> Iterator[list[Key]]:
    """Collects what is registered inside; takes it back if the body fails."""
    before = dict(_factories)
    added: list[Key] = []
    try:
        yield added
    except BaseException:
        _factories.clear()
        _factories.update(before)
        raise
    added += [key for key in _factories if key not in before]


def _load_builtin() -> None:
    if "builtin" in _loaded:
        return
    for module in BUILTIN_MODULES:
        importlib.import_module(f"cnnbench.models.{module}")
    _loaded.add("builtin")


def _load_entry_points() -> None:
    """An entry point is a module that registers on import, or a function that registers."""
    if "entry points" in _loaded:
        return
    for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        try:
            with _registering():
                loaded = point.load()
                if callable(loaded):
                    loaded()
        except Exception as error:
            raise UsageError(
                f"entry point {point.name} = {point.value} of group {ENTRY_POINT_GROUP} "
                f"fails: {_one_line(error)}"
            ) from error
    _loaded.add("entry points")


def _names(dataset: str) -> tuple[str, ...]:
    return tuple(sorted(name for owner, name in _factories if owner == dataset))


def _unknown(name: str, dataset: str) -> str:
    names = _names(dataset)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    listed = ", ".join(names) or "none"
    return f"unknown; {hint}models for {dataset}: {listed}"


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, UsageError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
