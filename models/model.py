"""The base class of models."""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from cnnbench import lazy_tensorflow as tf
from cnnbench.arrays import Array, Tensor, Tensors
from cnnbench.base import interfaces, plugins
from cnnbench.base.interfaces import is_tensor, sizes_agree, tensor_sizes, value_text
from cnnbench.errors import FlagError, UsageError
from cnnbench.models.elements import (
    IMAGE_CLASSIFICATION,
    Element,
    group_values,
    positive_size_attribute,
)
from cnnbench.models.learning_rate import LearningRateSpec
from cnnbench.models.network import Network, T
from cnnbench.models.spec import BatchNorm

LARGEST_IMAGE = 2**14
"""Largest height and width of images in pixels; a larger number is considered a typing error."""

# Types of the results of `Model` methods, with checks for plug-ins' results --------------------


def _count_examples(value: Any) -> int | None:
    """Returns the number of examples in a tensor or a mapping of tensors, or None if unknown."""
    first = next(iter(value.values()), None) if isinstance(value, Mapping) else value
    shape = tensor_sizes(first) if is_tensor(first) else None
    return shape[0] if shape else None


def _count_fault(value: Any, arguments: Sequence[Any], *, single: bool = False) -> str:
    shape = tensor_sizes(value) if hasattr(value, "shape") else ()
    examples = _count_examples(arguments[-1])  # The last argument contains the labels.
    fits = shape is None or (shape and (None in (shape[0], examples) or shape[0] == examples))
    if not single:
        wanted = "a tensor [n, ...], a row per example"
    else:
        wanted = "a float32 tensor [n], a value per example"
        fits = fits and len(shape or [0]) == 1 and getattr(value, "dtype", None) == "float32"
    return "" if fits else f"{wanted}, not {value_text(value)}"


def _element_fault(value: Mapping[str, Any], arguments: Sequence[Any]) -> str:
    model = arguments[0]
    for element in model.elements:
        if element.name not in value:
            return f"values of all elements, not without {element.name}"
        part = value[element.name]
        wanted = [getattr(model, n, None) if isinstance(n, str) else n for n in element.shape]
        if is_tensor(part) and not sizes_agree(tensor_sizes(part), wanted):
            return f"{element.name} as a tensor {wanted}, not {value_text(part)}"
    return ""


def _names_fault(attribute: str, value: Mapping[str, Any], arguments: Sequence[Any]) -> str:
    unprintable = [name for name in value if not name.isprintable()]
    if unprintable:
        return f"values by names of printable characters, not by {unprintable[0]!r}"
    names = getattr(arguments[0], attribute)
    if not names or set(value) == set(names):
        return ""
    # The message names the class of the model, because the list of names may be in another file.
    where = f"{type(arguments[0]).__name__}.{attribute}"
    listed, returned = ", ".join(names), ", ".join(value) or "none"
    return f"values by the names in {where}, {listed}, not by {returned}"


Elements = Annotated[Mapping[str, Tensor], _element_fault]
Column = Annotated[Tensor, partial(_count_fault, single=True)]
Metrics = Annotated[Mapping[str, Column], partial(_names_fault, "metric_names")]
Rows = Mapping[str, Annotated[Tensor, _count_fault]]
HostMetrics = Annotated[Mapping[str, float], partial(_names_fault, "host_metric_names")]


class Model(abc.ABC):
    """Base class of networks: layers, loss, metrics and default training settings.

    A subclass sets the attributes (on the class or in ``__init__``) and defines `build`. `build`
    runs twice: with shapes, to compute variables and FLOPs, and with TensorFlow tensors, to build
    the graph.

    Attributes:
      elements: features and labels of an example; by default, an image and its class. Sizes may be
        names of attributes.
      image_size: height and width of the images if ``--image_size`` is not given.
      image_sizes: the values of ``--image_size`` that `build` supports. By default, every size is
        tried.
      batch_size: batch size per device if ``--batch_size`` is 0.
      learning_rate: learning-rate schedule if no learning-rate flag is given.
      backbone: scope of the layers that ``--backbone_model_path`` restores. In the network from
        which they are restored, the layers have the same names without this scope. Empty if there
        is no backbone.
      metric_names: names of the results of `metrics`, in the order in which they are printed.
      host_metric_names: names of the results of `host_metrics`. ``--stop_at`` requires them.
      lower_is_better: names of the metrics and host metrics for which lower values are better.
      top_1_accuracy: the metric to which ``--stop_at_top_1_accuracy`` applies.
      num_classes: number of outputs if it is fixed. None means the number of classes of the data
        set, or ``--num_classes``.
      data_format: memory layout of the layers if they support only one.
      keras_layers: the value of ``--keras_layers``; None if the network is not a Keras model.
      aux_head: whether `build` adds the auxiliary head; ``--aux_head`` sets it, the default is
        False. None if the network has no optional auxiliary head.
    """

    name: str
    dataset: str
    elements: tuple[Element, ...] = IMAGE_CLASSIFICATION
    image_size: int
    image_sizes: range = range(1, LARGEST_IMAGE + 1)
    batch_size: int
    learning_rate: LearningRateSpec
    channels: int = 3
    batch_norm: BatchNorm = BatchNorm()
    backbone: str = ""
    metric_names: tuple[str, ...] = ("top_1", "top_5")
    host_metric_names: tuple[str, ...] = ()
    lower_is_better: tuple[str, ...] = ()
    top_1_accuracy: str = "top_1"
    aux_head: bool | None = None
    num_classes: int | None = None
    data_format: str = "auto"
    keras_layers: str | None = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        interfaces.guard_plugin_methods(cls, Model)

    def resize(self, image_size: int | None, num_classes: int | None) -> None:
        """Sets the image size in pixels and the number of outputs. None keeps the default.

        Raises UsageError if the network does not support them.
        """
        if image_size not in (None, getattr(self, "image_size", None)):
            if "image_size" not in (s for element in self.elements for s in element.named_sizes):
                raise FlagError("image_size", image_size, f"--model={self.name} takes no images")
            if image_size not in self.image_sizes:
                reason = f"--model={self.name} takes {_sizes_text(self.image_sizes)}"
                raise FlagError("image_size", image_size, reason)
            self.image_size = image_size
        if self.num_classes not in (None, num_classes or self.num_classes):
            reason = f"--model={self.name} has {self.num_classes} outputs only"
            raise FlagError("num_classes", num_classes, reason)

    @abc.abstractmethod
    def build(self, net: Network[T], features: Any) -> Any:
        """Builds the layers of the network for one tower (one copy of the network on one device).

        The other towers are copies of this tower's graph. If the graph contains stateful
        operations, such as `tf.random.uniform`, `build` runs for each tower instead.

        Args:
          features: by default images, ``(image_size, image_size, channels)`` per example. If the
            `elements` have several features, a mapping by name.
        """

    def preprocess(
        self, example: Mapping[str, Tensor], seed: Tensor, *, training: bool
    ) -> Elements:
        """Converts one example of the data set to the model's `elements`: features and labels.

        The input pipeline calls this method, also for synthetic examples. The result contains all
        elements by name, and may contain further values. By default, it is the example itself.

        Args:
          example: the elements that the data set declares, by name, without batch dimension.
          seed: int64 tensor ``[2]`` for random choices; different for each example.
        """
        del seed, training
        return example

    def loss(self, outputs: Tensors, labels: Tensors) -> Column:
        """Computes the loss of each example, float32 ``[n]``, without weight decay.

        By default, the loss is softmax cross entropy.

        Args:
          outputs: the result of `build`, as float32; by default, logits ``[n, num_classes]``.
          labels: by default int64 ``[n]``. If the `elements` have several labels, a mapping.
        """
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=outputs)

    def metrics(self, outputs: Tensors, labels: Tensors) -> Metrics:
        """Computes metrics per example, such as top-1 accuracy: float32 tensors ``[n]`` by name.

        An evaluation reports their means over all examples.

        The names are `metric_names`; if they are empty, there are no metrics. By default, the
        metrics are ``top_1`` and ``top_5``: the `top_k_hits` among the largest logit, and among the
        five largest logits.
        """
        if not self.metric_names:
            return {}
        return dict(zip(("top_1", "top_5"), top_k_hits(outputs, labels, (1, 5)), strict=True))

    def host_rows(self, features: Tensors, outputs: Tensors, labels: Tensors) -> Rows:
        """Computes the tensors ``[n, ...]``, by name, from which `host_metrics` computes metrics.

        By default, there are no such values. An evaluation computes the tensors on the host, even
        if the network is on a GPU. It stores them for all examples, so they should be small.
        """
        del features, outputs, labels
        return {}

    def host_metrics(self, rows: Mapping[str, Array]) -> HostMetrics:
        """Computes metrics that are not means over examples, such as error rates, by name.

        The names are `host_metric_names`, if the model declares them.

        Args:
          rows: NumPy arrays ``[examples, ...]`` with the names from `host_rows`, without padding.
            After a pass over the whole subset, they contain every example once.
        """
        del rows
        return {}

    def has_softmax_loss(self) -> bool:
        """Whether the model uses the default loss, which supports label smoothing."""
        return type(self).loss is Model.loss

    def has_host_metrics(self) -> bool:
        """Whether the model has metrics that `host_metrics` computes."""
        return type(self).host_metrics is not Model.host_metrics

    def validate(self) -> None:
        """Raises UsageError if an attribute that the subclass sets has an invalid value."""
        who = f"model class {type(self).__name__}"
        # image_size and channels are checked below, because not all models need them.
        interfaces.check_plugin_attributes(self, Model, who, "image_size", "channels")
        metrics = (*self.metric_names, *self.host_metric_names)
        for metric in metrics:
            plugins.check_name(f"a metric of {who}", metric)
        for metric in self.lower_is_better:
            if metric not in metrics:
                raise UsageError(
                    f"{who}: lower_is_better contains {metric!r}, which is not a metric of the "
                    "model"
                )
        for size in dict.fromkeys(s for element in self.elements for s in element.named_sizes):
            if size != "num_classes":
                positive_size_attribute(self, size)


def _sizes_text(values: range) -> str:
    if len(values) == 1:
        return f"{values.start} alone"
    kind = "sizes" if values.step == 1 else f"multiples of {values.step}"
    return f"{kind} from {values.start} to {values[-1]}"


def top_k_hits(logits: Tensor, labels: Tensor, tops: Sequence[int]) -> list[Column]:
    """Returns each label's probability of being among the k largest logits, for every k in `tops`.

    Equal logits are ordered at random. If e logits equal the label's logit (including itself) and g
    logits are larger, the probability is ``min(max((k - g) / e, 0), 1)``. Without ties, it is 0 or
    1. If all logits are equal, it is the probability of guessing correctly.

    Args:
      logits: float32 ``[n, classes]``. If a logit is not finite, the result for this example is 0.
      labels: integers ``[n]``. If a label is not a class, the result for this example is 0.

    Returns:
      A float32 tensor ``[n]``, 0 to 1, for each k.
    """
    of_label = tf.one_hot(labels, logits.shape[1], on_value=True, off_value=False)
    own = tf.reduce_max(tf.where(of_label, logits, -math.inf), axis=1, keepdims=True)
    larger = tf.math.count_nonzero(logits > own, axis=1, dtype=tf.float32)
    equal = tf.math.count_nonzero(logits == own, axis=1, dtype=tf.float32)
    usable = tf.reduce_all(tf.math.is_finite(logits), axis=1) & tf.reduce_any(of_label, axis=1)
    shares = (tf.clip_by_value((top - larger) / equal, 0.0, 1.0) for top in tops)
    return [tf.where(usable, hit, 0.0) for hit in shares]


def plugin_location_prefix(model: Model) -> str:
    """Returns a prefix for errors: the code location of a plug-in's model, or "" if built in."""
    built_in = plugins.is_defined_by_cnnbench(type(model))
    return "" if built_in else f"{plugins.definition_location(type(model).build)}: "


def build_checked_outputs(model: Model, net: Network[T], features: Mapping[str, T]) -> Any:
    """Calls `Model.build` with features (by name), and checks the shape of the outputs.

    With the default loss, outputs must be logits, ``(num_classes,)`` per example.
    """
    outputs = model.build(net, group_values(model.elements, "feature", features))
    logits = (outputs, *(head for head, _ in net.auxiliaries)) if model.has_softmax_loss() else ()
    for output in logits:
        has_shape = hasattr(output, "shape")
        shape: object = net.shape(output) if has_shape else value_text(output)
        if shape != (net.num_classes,):
            raise UsageError(
                f"{plugin_location_prefix(model)}model {model.name} must return logits of shape "
                f"({net.num_classes},) per example, not {shape}; end build() with net.logits(x)"
            )
    return outputs
