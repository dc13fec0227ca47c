"""Base class of all networks."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any

from cnnbench.base import plugins
from cnnbench.errors import UsageError
from cnnbench.models.elements import IMAGE_CLASSIFICATION, Element, named_size
from cnnbench.models.network import Network, T
from cnnbench.models.results import Column, Elements, HostMetrics, Metrics, Rows
from cnnbench.models.spec import BatchNorm, LearningRateSpec


class Model(abc.ABC):
    """A network: body, loss, and default training settings.

    A subclass sets the attributes (on the class or in ``__init__``) and writes `build`. The
    body is written once: cnnbench runs it with shapes alone to learn variables and FLOPs,
    and with TensorFlow tensors to make the graph.

    Attributes:
      elements: what it takes of an example, features and labels; an image and its class unless
        set. Sizes may name attributes.
      batch_size: per device, used when ``--batch_size`` is 0.
      learning_rate: used when no learning-rate flag is given.
      backbone: scope of the layers that ``--backbone_model_path`` restores, from a network that
        has them under the same names without it; empty for none.
      metric_names: what `metrics` returns, in the order in which it is printed.
      host_metric_names: what `host_metrics` returns; must be declared for ``--stop_at``.
      lower_is_better: those of both that are better the lower they are, as the loss is.
      top_1_accuracy: the metric that ``--stop_at_top_1_accuracy`` stands for.
      aux_head: whether `build` adds its auxiliary head, which is off unless ``--aux_head`` sets
        it; None for a network that has none to switch.
    """

    name: str
    dataset: str
    elements: tuple[Element, ...] = IMAGE_CLASSIFICATION
    image_size: int
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

    def __init_subclass__(cls) -> None:
        """See `plugins.check_methods`."""
        super().__init_subclass__()
        plugins.check_methods(cls, Model)

    @abc.abstractmethod
    def build(self, net: Network[T], features: Any) -> Any:
        """Builds one tower of the network.

        Operations with a state or effects, such as `tf.random.uniform`, make it run for each tower.

        Args:
          features: the input, by default the images, ``(image_size, image_size, channels)``
            per example. With several features among the `elements`, a mapping by name.
        """

    def preprocess(self, example: Mapping[str, Any], seed: Any, *, training: bool) -> Elements:
        """Makes the `elements` from an example of the data set, in the input pipeline.

        Synthetic examples pass through it as well. By default the network takes what the data
        set gives.

        Args:
          example: the elements that the data set declares, by name; without batch.
          seed: int64 tensor ``[2]`` for random choices, another one for each example.

        Returns:
          Values by name, one per element at least.
        """
        del seed, training
        return example

    def loss(self, outputs: Any, labels: Any) -> Column:
        """Loss of each example: softmax cross entropy unless a subclass overrides it.

        Args:
          outputs: what `build` returned, as float32: logits ``[n, num_classes]`` by default.
          labels: int64 tensor ``[n]`` by default; a mapping if the `elements` have several.

        Returns:
          float32 tensor ``[n]``, without weight decay.
        """
        import tensorflow as tf

        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=outputs)

    def metrics(self, outputs: Any, labels: Any) -> Metrics:
        """Named numbers of each example, averaged over examples.

        By default ``top_1`` and ``top_5``: whether the label is the largest logit, and among
        the largest five. With fewer than five classes ``top_5`` is 1 but for logits that are
        not finite.

        Returns:
          float32 tensors ``[n]``, one for each of `metric_names`.
        """
        import tensorflow as tf

        among = min(5, int(outputs.shape[1]))
        return {
            "top_1": tf.cast(tf.math.in_top_k(labels, outputs, 1), tf.float32),
            "top_5": tf.cast(tf.math.in_top_k(labels, outputs, among), tf.float32),
        }

    def host_rows(self, features: Any, outputs: Any, labels: Any) -> Rows:
        """Values of each example that an evaluation collects for `host_metrics`; none by default.

        It runs on the host, also where the network is on a GPU: operations need no GPU kernel.

        Returns:
          Tensors ``[n, ...]`` by name. They are kept for every example evaluated, so they
          should be small.
        """
        del features, outputs, labels
        return {}

    def host_metrics(self, rows: Mapping[str, Any]) -> HostMetrics:
        """Metrics that are no mean over examples, such as a rank among many of them.

        Args:
          rows: NumPy arrays ``[examples, ...]``, by the names that `host_rows` gave. Padding
            is left out. After a pass over the whole subset every example is there once.

        Returns:
          Values by name; those that `host_metric_names` declares, if it does.
        """
        del rows
        return {}

    def is_better_lower(self, metric: str) -> bool:
        """Whether smaller values of a metric, or of "loss", are better."""
        return metric == "loss" or metric in self.lower_is_better

    def has_softmax_loss(self) -> bool:
        """Whether `loss` is the softmax cross entropy, whose labels can be smoothed."""
        return type(self).loss is Model.loss

    def has_host_metrics(self) -> bool:
        """Whether there are `host_metrics`."""
        return type(self).host_metrics is not Model.host_metrics

    def validate(self) -> None:
        """Checks the attributes that the subclass has set."""
        who = f"model class {type(self).__name__}"
        # Elements name the size of an image and what else there may be.
        plugins.check_attributes(self, Model, who, "image_size", "channels")
        metrics = (*self.metric_names, *self.host_metric_names)
        for metric in metrics:
            plugins.check_name(f"a metric of {who}", metric)
        for metric in self.lower_is_better:
            if metric not in metrics:
                raise UsageError(
                    f"{who}: lower_is_better has {metric!r}, which is none of its metrics"
                )
        for size in dict.fromkeys(size for one in self.elements for size in one.named_sizes):
            if size != "num_classes":
                named_size(self, size)
