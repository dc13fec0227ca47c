"""Network and data set of a run, and what the flags need of them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from cnnbench.base import plugins
from cnnbench.base.files import is_url, place
from cnnbench.data.dataset import Dataset, Preprocess, find_dataset
from cnnbench.errors import FlagError, UsageError
from cnnbench.flags.params import FLAGS, Params
from cnnbench.models import model as registry
from cnnbench.models.declaration import declare
from cnnbench.models.model import Model
from cnnbench.models.spec import Element, ModelSpec, resolve

FILE_SYSTEMS = "cnnbench.file_systems"
"""Group of entry points that register file systems with TensorFlow."""

_ANSWER_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class NetworkPlan:
    """Network and data set.

    Attributes:
      spec: variables and FLOPs of the network.
      examples: elements of an example of the data set, with resolved sizes.
      backbone: path of the checkpoint from which the backbone of the model is read, or None.
      own_sizes: flags that ask for the size or the outputs that the model has anyway.
    """

    dataset: Dataset
    model: Model
    spec: ModelSpec
    examples: tuple[Element, ...]
    backbone: str | None
    own_sizes: tuple[str, ...] = ()

    @classmethod
    def resolved(cls, flags: Params) -> NetworkPlan:
        """The network that the flags name; FlagError for unknown names and unreachable URLs."""
        _check_urls(flags)
        dataset = find_dataset(flags.data_name, flags.data_dir, flags.model)
        model = registry.get_model(flags.model, dataset.name)
        own = {
            "image_size": getattr(model, "image_size", None),
            "num_classes": model.num_classes or dataset.num_classes,
        }
        dataset = _resized(flags, model, dataset)
        if flags.aux_head and model.aux_head is not None:
            model.aux_head = True
        if model.keras_layers is not None:
            model.keras_layers = flags.keras_layers
        return cls(
            dataset=dataset,
            model=model,
            spec=_declared(flags, model, dataset),
            examples=resolve(dataset.elements, model, dataset.num_classes),
            backbone=flags.backbone_model_path,
            own_sizes=tuple(n for n, size in own.items() if size == getattr(flags, n)),
        )

    def preprocess(self, *, training: bool) -> Preprocess | None:
        """The model's preprocessing of an example; None if the model has none."""
        if type(self.model).preprocess is Model.preprocess:
            return None
        return partial(self.model.preprocess, training=training)


def model_gradients(name: str, data_name: str | None) -> tuple[Model, tuple[tuple[int, ...], ...]]:
    """A model and the shapes of its gradients, in the order of its trainable variables.

    Without --data_name its data set is used. FlagError if it is unknown or cannot be declared.
    """
    dataset = find_dataset(data_name, None, name)
    model = registry.get_model(name, dataset.name)
    spec = declare(model, dataset.num_classes)
    shapes = tuple(variable.shape for variable in spec.variables if variable.trainable)
    if not shapes:
        raise FlagError("model", name, "has no gradients to reduce")
    return model, shapes


def _resized(flags: Params, model: Model, dataset: Dataset) -> Dataset:
    """Gives the model the size and the outputs of the flags; the data set with that many classes.

    FlagError if the network does not take them.
    """
    with _refused(flags):
        model.resize(flags.image_size, flags.num_classes)
    return replace(dataset, num_classes=flags.num_classes or dataset.num_classes)


def _declared(flags: Params, model: Model, dataset: Dataset) -> ModelSpec:
    if flags.image_size is None:
        return declare(model, dataset.num_classes)
    with _refused(flags):
        return declare(model, dataset.num_classes)


@contextlib.contextmanager
def _refused(flags: Params) -> Iterator[None]:
    """Lets errors of a network's layers name the flag that asks for other sizes."""
    try:
        yield
    except FlagError:
        raise
    except UsageError as error:
        name = "num_classes" if flags.image_size is None else "image_size"
        reason = f"--model={flags.model} does not take it: {error}"
        raise FlagError(name, getattr(flags, name), reason) from error


def _check_urls(flags: Params) -> None:
    """Refuses URLs that TensorFlow does not reach; loads it if there are any."""
    for flag in (spec.name for spec in FLAGS if spec.takes_urls):
        if not is_url(path := getattr(flags, flag) or ""):
            continue
        for prepare in plugins.before_loading:
            prepare()
        import tensorflow as tf

        if path.partition(":")[0] not in tf.io.gfile.get_registered_schemes():
            plugins.load_entry_points(FILE_SYSTEMS)
        if reason := _unreachable(path):
            raise FlagError(flag, path, f"cannot be reached: {reason}")


def _unreachable(path: str) -> str:
    """The reason why a URL is not reached, or ""."""
    reasons = [f"no answer within {_ANSWER_SECONDS:g} s"]

    def ask() -> None:
        try:
            place(path).exists()
            reasons.append("")
        except OSError as error:
            reasons.append(str(error.strerror))

    # In a thread: TensorFlow retries for many minutes, in which no signal would be handled.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_ANSWER_SECONDS)
    return reasons[-1]
