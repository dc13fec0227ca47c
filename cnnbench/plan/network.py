"""The network and the data set of a run."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from cnnbench.base import plugins
from cnnbench.base.urls import is_url, local_or_url_path
from cnnbench.data.dataset import Dataset, Preprocess, find_dataset
from cnnbench.errors import FlagError, UsageError
from cnnbench.flags import FLAGS, Params
from cnnbench.models import registry
from cnnbench.models.declaration import declare
from cnnbench.models.elements import Element, resolve_sizes
from cnnbench.models.model import Model
from cnnbench.models.spec import ModelSpec

FILE_SYSTEMS = "cnnbench.file_systems"
"""Group of the Python entry points that register file systems with TensorFlow."""

_ANSWER_SECONDS = 60.0
_ACCESS_THREAD = "access to a URL"


@dataclass(frozen=True, kw_only=True)
class NetworkPlan:
    """The network and the data set of a run.

    Attributes:
      spec: variables and FLOPs of the network.
      examples: elements of an example of the data set, with resolved sizes.
      own_sizes: names of the flags, --image_size or --num_classes, that equal the model's default.
    """

    dataset: Dataset
    model: Model
    spec: ModelSpec
    examples: tuple[Element, ...]
    own_sizes: tuple[str, ...] = ()

    @classmethod
    def resolved(cls, flags: Params) -> NetworkPlan:
        """Resolves the network and the data set that the flags select.

        FlagError for unknown names and unreachable URLs.
        """
        _check_urls(flags)
        dataset = find_dataset(flags.data_name, flags.data_dir, flags.model)
        model = registry.get_model(flags.model, dataset.name)
        own = {
            "image_size": getattr(model, "image_size", None),
            "num_classes": model.num_classes or dataset.num_classes,
        }
        with _naming_size_flag(flags):
            model.resize(flags.image_size, flags.num_classes)
        dataset = replace(dataset, num_classes=flags.num_classes or dataset.num_classes)
        if flags.aux_head and model.aux_head is not None:
            model.aux_head = True
        if model.keras_layers is not None:
            model.keras_layers = flags.keras_layers
        # Sizes of layers can become impossible, such as negative, only by --image_size.
        resized = flags.image_size is not None
        with _naming_size_flag(flags) if resized else contextlib.nullcontext():
            spec = declare(model, dataset.num_classes)
        return cls(
            dataset=dataset,
            model=model,
            spec=spec,
            examples=resolve_sizes(dataset.elements, model, dataset.num_classes),
            own_sizes=tuple(n for n, size in own.items() if size == getattr(flags, n)),
        )

    def preprocess(self, *, training: bool) -> Preprocess | None:
        """Returns the model's function that preprocesses an example; None if it has none."""
        if type(self.model).preprocess is Model.preprocess:
            return None
        return partial(self.model.preprocess, training=training)


def model_gradients(name: str, data_name: str | None) -> tuple[tuple[int, ...], ...]:
    """The shapes of a model's gradients, in the order of its trainable variables.

    Without --data_name its data set is used. FlagError if it is unknown or cannot be declared.
    """
    dataset = find_dataset(data_name, None, name)
    spec = declare(registry.get_model(name, dataset.name), dataset.num_classes)
    shapes = tuple(variable.shape for variable in spec.variables if variable.trainable)
    if not shapes:
        raise FlagError("model", name, "has no gradients to reduce")
    return shapes


@contextlib.contextmanager
def _naming_size_flag(flags: Params) -> Iterator[None]:
    """A context that turns errors of layers into FlagErrors about --image_size or --num_classes."""
    try:
        yield
    except FlagError:
        raise
    except UsageError as error:
        name = "num_classes" if flags.image_size is None else "image_size"
        reason = f"--model={flags.model} does not take it: {error}"
        raise FlagError(name, getattr(flags, name), reason) from error


def _check_urls(flags: Params) -> None:
    """Raises FlagError for a URL that TensorFlow cannot reach. Loads TensorFlow only for URLs."""
    for flag in (spec.name for spec in FLAGS if spec.takes_urls):
        if not is_url(path := getattr(flags, flag) or ""):
            continue
        for prepare in plugins.before_loading:
            prepare()
        import tensorflow as tf

        if path.partition(":")[0] not in tf.io.gfile.get_registered_schemes():
            plugins.load_entry_points(FILE_SYSTEMS)
        if reason := _why_unreachable(path):
            raise FlagError(flag, path, f"cannot be reached: {reason}")


def _why_unreachable(path: str) -> str:
    """Returns why TensorFlow cannot reach a URL, or "" if it can."""
    reasons = [f"no answer within {_ANSWER_SECONDS:g} s"]

    def access_url() -> None:
        try:
            local_or_url_path(path).exists()
            reasons.append("")
        except OSError as error:
            reasons.append(str(error.strerror))

    # A separate thread, because in the main thread TensorFlow's retries would block Ctrl-C and
    # other signals for minutes.
    thread = threading.Thread(target=access_url, name=_ACCESS_THREAD, daemon=True)
    thread.start()
    thread.join(_ANSWER_SECONDS)
    return reasons[-1]
