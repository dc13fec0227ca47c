"""Plain data about networks: features, labels, variables and FLOPs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeVar

from cnnbench.arrays import Array
from cnnbench.errors import UsageError

# Features and labels of examples, as plain data.

V = TypeVar("V")

Size = int | str
"""A size: a number, or a name, which is ``num_classes`` or an attribute of the model."""

Role = Literal["feature", "label"]


@dataclasses.dataclass(frozen=True)
class Draw:
    """Random distribution of the synthetic values of a feature or label.

    Create it with a class method, such as `Draw.normal`. `scale` is the standard deviation of
    ``normal`` and the value of ``constant``.
    """

    kind: Literal["normal", "integers", "uniform", "constant", "boxes"]
    scale: float = 1.0
    low: Size = 0
    high: Size = 1

    @classmethod
    def normal(cls, stddev: float = 1.0) -> Draw:
        """Creates a normal distribution with mean 0, truncated at two standard deviations."""
        return cls("normal", stddev)

    @classmethod
    def integers(cls, low: Size, high: Size) -> Draw:
        """Creates a uniform distribution of integers from ``low`` to ``high`` - 1."""
        return cls("integers", low=low, high=high)

    @classmethod
    def uniform(cls, low: int = 0, high: int = 1) -> Draw:
        """Creates a uniform distribution of real numbers from ``low`` to ``high``."""
        return cls("uniform", low=low, high=high)

    @classmethod
    def constant(cls, value: float) -> Draw:
        """Creates a distribution in which every synthetic value is ``value``."""
        return cls("constant", value)

    @classmethod
    def boxes(cls) -> Draw:
        """Creates a distribution of boxes ``[..., 4]``: top, left, bottom and right in [0, 1].

        Each box has top < bottom and left < right.
        """
        return cls("boxes")


@dataclasses.dataclass(frozen=True)
class Element:
    """One named feature or label of an example: shape, dtype and synthetic values.

    Attributes:
      shape: shape for one example, without batch; ``()`` for a scalar. A size may be the name of an
        attribute of the model, such as ``image_size``.
      role: ``feature`` for an input of the network, ``label`` for an input of loss and metrics.
      dtype: TensorFlow's name of the dtype. ``float32`` features are converted to the precision of
        the run.
      draw: distribution of synthetic values; None if only `Model.preprocess` creates the element.
      rows: name of a scalar integer element that contains the number of valid rows. The other rows
        are zeros. For example, the number of boxes varies between images.
    """

    name: str
    shape: tuple[Size, ...]
    role: Role
    dtype: str = "float32"
    draw: Draw | None = None
    rows: str | None = None

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape as integers. Call `resolve_sizes` first if the shape contains names."""
        return tuple(int(size) for size in self.shape)

    @property
    def is_real(self) -> bool:
        """Whether the dtype is floating-point, so that a feature is cast to the run's precision."""
        return self.dtype.startswith(("float", "bfloat"))

    @property
    def named_sizes(self) -> tuple[str, ...]:
        """Sizes that are names of model attributes, such as ``image_size``, instead of numbers."""
        bounds = () if self.draw is None else (self.draw.low, self.draw.high)
        return tuple(size for size in (*self.shape, *bounds) if isinstance(size, str))


IMAGE = Element("image", ("image_size", "image_size", "channels"), "feature", draw=Draw.normal(0.5))
"""A square image. Synthetic values are like those of a normalised photograph, in [-1, 1]."""

LABEL = Element("label", (), "label", "int64", Draw.integers(0, "num_classes"))
"""The class of an image. It has 64 bits, because TensorFlow keeps int32 in host memory."""

IMAGE_CLASSIFICATION = (IMAGE, LABEL)


def resolve_sizes(
    elements: Sequence[Element], owner: object, num_classes: int
) -> tuple[Element, ...]:
    """Replaces names of sizes, such as ``image_size``, by the values of the model's attributes.

    `owner` is the model.
    """

    def number(size: Size) -> int:
        if isinstance(size, int):
            return size
        return num_classes if size == "num_classes" else positive_size_attribute(owner, size)

    resolved = []
    for element in elements:
        draw = element.draw
        if draw is not None:
            draw = dataclasses.replace(draw, low=number(draw.low), high=number(draw.high))
        shape = tuple(number(size) for size in element.shape)
        resolved.append(dataclasses.replace(element, shape=shape, draw=draw))
    return tuple(resolved)


def positive_size_attribute(owner: object, name: str) -> int:
    """Returns the model attribute `name`; raises UsageError if it is not an integer above 0."""
    value = getattr(owner, name, None)
    who = f"model class {type(owner).__name__}"
    if not isinstance(value, int):
        raise UsageError(f"{who} needs an attribute {name} of type int, got {value!r}")
    if value < 1:
        raise UsageError(f"{who}: {name}={value} must be at least 1")
    return value


def elements_of_role(elements: Sequence[Element], role: Role) -> tuple[Element, ...]:
    """Selects all features, or all labels, from the elements of an example."""
    return tuple(element for element in elements if element.role == role)


def group_values(
    elements: Sequence[Element], role: Role, values: Mapping[str, V]
) -> V | dict[str, V]:
    """Returns the only feature (or label), or a mapping by name if there are several."""
    names = [element.name for element in elements_of_role(elements, role)]
    return values[names[0]] if len(names) == 1 else {name: values[name] for name in names}


def values_by_name(
    elements: Sequence[Element], role: Role, group: V | Mapping[str, V]
) -> Mapping[str, V]:
    """Inverse of `group_values`: converts features (or labels) to values by name."""
    if isinstance(group, Mapping):
        return group
    (element,) = elements_of_role(elements, role)
    return {element.name: group}


# Variables and FLOPs of models, as plain data.

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
