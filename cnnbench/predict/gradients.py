"""The gradients of a model, known from its declaration, without TensorFlow."""

from __future__ import annotations

from cnnbench.predict.tensor import Tensor


def model_gradients(model: str, data_name: str | None, itemsize: int) -> tuple[Tensor, ...]:
    """One tensor per trainable variable, in the order of their creation.

    Args:
      model: name as --model gives it.
      data_name: data set, None for ImageNet.
      itemsize: bytes per element as sent.

    Raises:
      FlagError: an unknown model or data set.
    """
    from cnnbench.data.dataset import find_dataset
    from cnnbench.models.declare import declare
    from cnnbench.models.registry import get_model

    dataset = find_dataset(data_name, None)
    spec = declare(get_model(model, dataset.name), dataset.num_classes)
    return tuple(Tensor(v.size, itemsize) for v in spec.variables if v.trainable)


def default_batch_size(model: str, data_name: str | None) -> int:
    """Images per device and step, unless the user says otherwise.

    Raises:
      FlagError: an unknown model or data set.
    """
    from cnnbench.data.dataset import find_dataset
    from cnnbench.models.registry import get_model

    return get_model(model, find_dataset(data_name, None).name).batch_size
