"""The base class of every network that cnnbench can run."""

from __future__ import annotations

import abc
from typing import Any, ClassVar

from cnnbench.errors import UsageError
from cnnbench.models.network import Network, T
from cnnbench.models.spec import BatchNorm, LearningRateSpec


class Model(abc.ABC):
    """A network: its body, its loss and the defaults it is usually trained with.

    A subclass sets the attributes (on the class or in ``__init__``) and writes `build`. The
    body is written once: cnnbench runs it with shapes alone to learn variables and FLOPs,
    and with TensorFlow tensors to make the graph.

    Attributes:
      name: the name given to ``--model``.
      dataset: the data set it is for.
      image_size: height and width of the images it takes.
      channels: of the images.
      batch_size: per device, used when ``--batch_size`` is 0.
      learning_rate: used when no learning-rate flag is given.
      batch_norm: settings for ``batch_norm=True`` layers.
    """

    name: str
    dataset: str
    image_size: int
    batch_size: int
    learning_rate: LearningRateSpec
    channels: int = 3
    batch_norm: BatchNorm = BatchNorm()

    @abc.abstractmethod
    def build(self, net: Network[T], images: T) -> T:
        """Writes the network.

        Args:
          net: makes layers and variables.
          images: the input, ``(image_size, image_size, channels)`` per example.

        Returns:
          The logits, ``(num_classes,)`` per example.
        """

    def loss(self, logits: Any, labels: Any) -> Any:
        """Loss of each example: softmax cross entropy unless a subclass overrides it.

        Args:
          logits: float32 tensor ``[n, num_classes]``.
          labels: int64 tensor ``[n]``.

        Returns:
          float32 tensor ``[n]``, without weight decay.
        """
        import tensorflow as tf

        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)

    def has_softmax_loss(self) -> bool:
        """Whether `loss` is the softmax cross entropy, whose labels can be smoothed."""
        return type(self).loss is Model.loss

    _ATTRIBUTES: ClassVar[dict[str, type]] = {
        "name": str,
        "dataset": str,
        "image_size": int,
        "channels": int,
        "batch_size": int,
        "learning_rate": LearningRateSpec,
        "batch_norm": BatchNorm,
    }

    def validate(self) -> None:
        """Checks that the subclass has set its attributes to something usable.

        Raises:
          UsageError: an attribute is missing, of the wrong type or not positive.
        """
        for attribute, kind in self._ATTRIBUTES.items():
            value = getattr(self, attribute, None)
            who = f"model class {type(self).__name__}"
            if not isinstance(value, kind):
                raise UsageError(
                    f"{who} needs an attribute {attribute} of type {kind.__name__}, got {value!r}"
                )
            if isinstance(value, int) and value < 1:
                raise UsageError(f"{who}: {attribute}={value} must be at least 1")
