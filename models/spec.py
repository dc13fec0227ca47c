"""Plain data about networks: variables and FLOPs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from cnnbench.arrays import Array
from cnnbench.models.elements import Element, elements_of_role

TRUNCATED_STDDEV = 0.87962566103423978
"""Standard deviation of a standard normal distribution truncated at two standard deviations.

To get the standard deviation of He's and LeCun's rules, truncated draws are divided by it.
"""

MASTER_BYTES = 4  # Master copies are float32 for every compute precision.


@dataclasses.dataclass(frozen=True)
class Initializer:
    """Distribution of a variable's initial value. Create one with `constant` and similar methods.

    Attributes:
      kind: ``constant`` (all elements are ``value``), ``truncated_normal`` (mean 0; ``stddev`` is
        the standard deviation before truncation at two standard deviations), ``variance_scaling``
        (a truncated normal with variance ``scale`` / fan *after* truncation; fan is the number of
        inputs for ``mode`` ``fan_in``, and the number of outputs for ``fan_out``) or ``given`` (the
        result of ``draw``, which ``source`` identifies).
    """

    kind: Literal["constant", "truncated_normal", "variance_scaling", "given"]
    value: float = 0.0
    stddev: float = 1.0
    scale: float = 1.0
    mode: Literal["fan_in", "fan_out"] = "fan_in"
    source: str = ""
    draw: Callable[[str, int, int], Array] | None = dataclasses.field(
        default=None, repr=False, compare=False
    )

    @classmethod
    def constant(cls, value: float) -> Initializer:
        """Creates an initializer with which every element of the variable is ``value``."""
        return cls("constant", value=value)

    @classmethod
    def truncated_normal(cls, stddev: float) -> Initializer:
        """Creates a normal distribution with mean 0, truncated at two standard deviations."""
        return cls("truncated_normal", stddev=stddev)

    @classmethod
    def variance_scaling(
        cls, scale: float = 1.0, mode: Literal["fan_in", "fan_out"] = "fan_in"
    ) -> Initializer:
        """Creates a truncated normal distribution whose variance is ``scale`` / fan."""
        return cls("variance_scaling", scale=scale, mode=mode)

    @classmethod
    def given(cls, draw: Callable[[str, int, int], Array], source: str) -> Initializer:
        """Creates an initializer that calls ``draw(name, seed, tower)`` for the initial value.

        Args:
          draw: function that returns an array of the variable's shape.
          source: text that identifies the values, such as a file's digest. Different values must
            have different texts.
        """
        return cls("given", draw=draw, source=source)

    def draw_stddev(self, shape: Sequence[int]) -> float:
        """Returns the standard deviation, before truncation, for a variable with this shape.

        It is 0.0 for a constant. The last two dimensions of the shape are inputs and outputs.
        """
        if self.kind == "constant":
            return 0.0
        if self.kind == "truncated_normal":
            return self.stddev
        if len(shape) < 2:
            fan = math.prod(shape)
        else:
            fan = math.prod(shape[:-2]) * shape[-2 if self.mode == "fan_in" else -1]
        return math.sqrt(self.scale / max(1, fan)) / TRUNCATED_STDDEV


@dataclasses.dataclass(frozen=True)
class VariableSpec:
    """Declaration of one model variable, which is stored as float32 except with --fp16_vars.

    Attributes:
      name: name of the variable, such as ``conv0/kernel``. It is the same in every mode and
        checkpoint.
      weight_decay: whether L2 decay applies. True for kernels and biases; False for scale and
        offset of batch norm, and for variables that are not trainable.
      statistic: whether it is a moving average for evaluation (mean or variance of batch norm).
        Statistics are saved in checkpoints, but are not parameters.
      dtype: ``float32`` if it is always read as float32; ``int64`` for the state of a random
        generator, which is stored as integers and is neither a parameter nor a statistic; empty if
        it is read in the compute precision.
    """

    name: str
    shape: tuple[int, ...]
    initializer: Initializer
    trainable: bool = True
    weight_decay: bool = True
    statistic: bool = False
    dtype: Literal["", "float32", "int64"] = ""

    @property
    def size(self) -> int:
        """Number of elements of the variable."""
        return math.prod(self.shape)

    @property
    def fits_16_bits(self) -> bool:
        """Whether --fp16_vars stores the variable in 16 bits; normalisation needs float32."""
        return self.trainable and self.weight_decay

    @property
    def bytes(self) -> int:
        """Size of the variable's float32 master copy in bytes."""
        return self.size * MASTER_BYTES


@dataclasses.dataclass(frozen=True)
class BatchNorm:
    """Settings of batch normalisation layers.

    `scale` is whether the result is multiplied by a learned gamma. `unbiased` is whether the batch
    variances in the moving average are divided by count - 1 instead of the count.
    """

    decay: float = 0.9
    epsilon: float = 1e-5
    scale: bool = True
    unbiased: bool = True


class BatchNormLayer(NamedTuple):
    """Variables and settings of one batch-norm layer. `gamma` is None without `BatchNorm.scale`."""

    gamma: VariableSpec | None
    beta: VariableSpec
    mean: VariableSpec
    variance: VariableSpec
    settings: BatchNorm


class LayerFlopsAndMemory(NamedTuple):
    """FLOPs and memory per example of a function that contains several layers.

    Attributes:
      layers: for each layer, FLOPs of the forward pass, of the input gradient and of the kernel
        gradient.
      kept: largest number of values, without variables, that exist at the same time in training.
      forward: largest number of values, without variables, that exist at the same time in a forward
        pass without training.
    """

    layers: Mapping[str, tuple[int, int, int]]
    kept: int
    forward: int


class KerasDeclaration(NamedTuple):
    """Image size, number of classes, variables and FLOPs of a Keras model, as plain data.

    Attributes:
      size: height and width of the images.
      classes: number of outputs.
      variables: trainable variables first, in the order of `keras.Model.stateless_call`.
    """

    size: int
    channels: int
    classes: int
    variables: tuple[VariableSpec, ...]
    work: LayerFlopsAndMemory = LayerFlopsAndMemory({}, 0, 0)


@dataclasses.dataclass(frozen=True)
class ModelSpec:
    """Properties of a model that are known without creating TensorFlow operations.

    Attributes:
      elements: features and labels of one example, with numbers in place of named sizes.
      forward_flops_per_image: FLOPs of the forward pass: two for each multiply-add in convolutions,
        affine layers, recurrent layers and attention.
      training_flops_per_image: FLOPs of forward and backward pass: three times the forward FLOPs,
        minus the input gradients of layers whose inputs do not depend on trainable variables.
      flattened: for each affine layer with an input from `Network.flatten`: the shape (height,
        width, channels) before flattening, by the name of the layer's kernel.
      recomputed_flops_per_image: FLOPs that ``--recompute=blocks`` adds to a training step; None if
        the model has no blocks (`Network.block`).
      peak_values: largest number of values of one example that a training step keeps at a time.
    """

    name: str
    dataset: str
    elements: tuple[Element, ...]
    num_classes: int
    variables: tuple[VariableSpec, ...]
    forward_flops_per_image: int
    training_flops_per_image: int
    flattened: Mapping[str, tuple[int, int, int]] = dataclasses.field(default_factory=dict)
    recomputed_flops_per_image: int | None = None
    peak_values: int = 0

    @property
    def input_shape(self) -> str:
        """Shapes of the features as text, such as ``224x224x3``; for a scalar feature, its name."""
        features = elements_of_role(self.elements, "feature")
        return ", ".join("x".join(map(str, feature.shape)) or feature.name for feature in features)

    @property
    def parameters(self) -> int:
        """Number of elements in all variables, including frozen variables, but not statistics."""
        return sum(v.size for v in self.variables if not v.statistic and v.dtype != "int64")

    @property
    def trainable_parameters(self) -> int:
        """Number of elements in all variables that the optimizer updates."""
        return sum(v.size for v in self.variables if v.trainable)

    @property
    def statistics(self) -> int:
        """Number of elements in all moving averages of batch norm, which evaluation uses."""
        return sum(v.size for v in self.variables if v.statistic)
