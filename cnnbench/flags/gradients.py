"""The gradients of --model, from its declaration, without TensorFlow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cnnbench.errors import FlagError, UsageError

if TYPE_CHECKING:
    from cnnbench.models.model import Model


def model_gradients(
    name: str, data_name: str | None, plugin: str | None = None
) -> tuple[Model, tuple[tuple[int, ...], ...]]:
    """A model and the shapes of its gradients, one per trainable variable as created.

    Args:
      name: value of --model.
      data_name: value of --data_name; None for ImageNet.
      plugin: value of --model_plugin.

    Raises:
      FlagError: an unknown model or data set, or a model that cannot be declared.
    """
    from cnnbench.data.dataset import find_dataset
    from cnnbench.models import registry
    from cnnbench.models.declare import declare

    if plugin:
        registry.load_plugin(plugin)
    dataset = find_dataset(data_name, None)
    model = registry.get_model(name, dataset.name)
    try:
        spec = declare(model, dataset.num_classes)
    except UsageError:
        raise
    except Exception as error:  # a plug-in's code may raise anything
        raise FlagError(
            "model", name, f"its build() raises {type(error).__name__}: {error}"
        ) from error
    shapes = tuple(variable.shape for variable in spec.variables if variable.trainable)
    if not shapes:
        raise FlagError("model", name, "has no gradients to reduce")
    return model, shapes
