"""Specifications of models as plain data: variables, counts, learning rates. No TensorFlow."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from cnnbench.errors import UsageError
from cnnbench.models.elements import Element, of_role

# Standard deviation of a unit normal cut off at two standard deviations. Dividing by it gives
# a truncated draw the standard deviation that was asked for (the He/LeCun scaling rules).
TRUNCATED_STDDEV = 0.87962566103423978

MASTER_BYTES = 4  # master copies are float32 whatever the compute precision


@dataclasses.dataclass(frozen=True)
class Initializer:
    """Distribution of a variable's initial value, made by the three constructors.

    Attributes:
      kind: ``constant`` (``value``), ``truncated_normal`` (mean 0, ``stddev`` before draws
        beyond two standard deviations are redrawn) or ``variance_scaling`` (a truncated
        normal whose variance *after* truncation is ``scale`` / fan, the fan being the
        inputs for the ``mode`` ``fan_in`` and the outputs for ``fan_out``).
    """

    kind: Literal["constant", "truncated_normal", "variance_scaling"]
    value: float = 0.0
    stddev: float = 1.0
    scale: float = 1.0
    mode: Literal["fan_in", "fan_out"] = "fan_in"

    @classmethod
    def constant(cls, value: float) -> Initializer:
        """Every element is ``value``."""
        return cls("constant", value=value)

    @classmethod
    def truncated_normal(cls, stddev: float) -> Initializer:
        """Normal distribution of mean 0, truncated at two standard deviations."""
        return cls("truncated_normal", stddev=stddev)

    @classmethod
    def variance_scaling(
        cls, scale: float = 1.0, mode: Literal["fan_in", "fan_out"] = "fan_in"
    ) -> Initializer:
        """Truncated normal of variance ``scale`` / fan, truncation accounted for."""
        return cls("variance_scaling", scale=scale, mode=mode)

    def draw_stddev(self, shape: Sequence[int]) -> float:
        """Standard deviation before truncation for a variable; 0.0 for a constant.

        The last two dimensions of the shape are those of inputs and outputs.
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
    """One logical variable of a model; the master copy is float32 unless --fp16_vars narrows it.

    Attributes:
      name: the same in every mode and checkpoint, such as ``conv0/kernel``.
      weight_decay: whether L2 decay applies: true for kernels and biases, false for scale and
        offset of batch norm and for variables that are not trainable.
      statistic: whether it is a moving average kept for evaluation (batch norm's mean and
        variance), which is checkpointed but not counted as a parameter.
    """

    name: str
    shape: tuple[int, ...]
    initializer: Initializer
    trainable: bool = True
    weight_decay: bool = True
    statistic: bool = False

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def fits_16_bits(self) -> bool:
        """Whether it may be stored in 16 bits; variables of normalisation stay float32."""
        return self.trainable and self.weight_decay

    @property
    def bytes(self) -> int:
        """Bytes of the float32 master copy."""
        return self.size * MASTER_BYTES


@dataclasses.dataclass(frozen=True)
class BatchNorm:
    """Settings of batch normalisation; with `scale` a learned gamma multiplies the result."""

    decay: float = 0.9
    epsilon: float = 1e-5
    scale: bool = True


class BatchNormLayer(NamedTuple):
    """Variables and settings of one batch-norm layer; without `scale` there is no gamma."""

    gamma: VariableSpec | None
    beta: VariableSpec
    mean: VariableSpec
    variance: VariableSpec
    settings: BatchNorm


@dataclasses.dataclass(frozen=True)
class LearningRateSpec:
    """A model's own learning-rate schedule, as data.

    The rate is ``base * factors[k]``, k being the number of boundaries already passed;
    with ``base_batch`` it is also multiplied by global batch / ``base_batch``. During the
    first ``warmup_epochs`` it increases linearly from 0. With ``decay_epochs`` there are no
    boundaries, and the rate is multiplied by ``decay_factor`` at the end of each such period.

    Attributes:
      base_batch: global batch size that ``base`` is meant for; None when the rate does not
        depend on the batch size.
      boundaries_epochs: strictly increasing epochs at which the factor changes.
      factors: one more than boundaries.
      whole_batches: whether boundaries count the whole batches of an epoch only.
      decay_epochs: epochs between two decays; 0 for none.
    """

    base: float
    base_batch: int | None = None
    boundaries_epochs: tuple[float, ...] = ()
    factors: tuple[float, ...] = (1.0,)
    warmup_epochs: float = 0.0
    whole_batches: bool = False
    decay_epochs: float = 0.0
    decay_factor: float = 1.0

    def __post_init__(self) -> None:
        if len(self.factors) != len(self.boundaries_epochs) + 1:
            raise UsageError(
                f"learning rate with {len(self.boundaries_epochs)} boundaries needs "
                f"{len(self.boundaries_epochs) + 1} factors, not {len(self.factors)}"
            )
        if self.boundaries_epochs and self.decay_epochs:
            raise UsageError("learning rate has boundaries and a decay; give one of them")
        if list(self.boundaries_epochs) != sorted(set(self.boundaries_epochs)):
            raise UsageError(
                f"learning rate boundaries {self.boundaries_epochs} must increase strictly"
            )

    @classmethod
    def cosine(
        cls, base: float, *, base_batch: int, epochs: int, warmup_epochs: float
    ) -> LearningRateSpec:
        """Half a cosine in steps of an epoch (Loshchilov and Hutter, arXiv:1608.03983)."""
        return cls(
            base,
            base_batch=base_batch,
            boundaries_epochs=tuple(float(epoch) for epoch in range(1, epochs)),
            factors=tuple((1.0 + math.cos(math.pi * k / epochs)) / 2 for k in range(epochs)),
            warmup_epochs=warmup_epochs,
        )


@dataclasses.dataclass(frozen=True)
class ModelSpec:
    """Properties of a model that need no graph.

    Attributes:
      elements: features and labels of one example, with numbers in place of named sizes.
      forward_flops_per_image: twice the multiply-adds of convolutions, affine and recurrent
        layers and attention.
      training_flops_per_image: forward and backward pass: three times the forward count,
        without the input gradient of layers that are fed by the images alone.
      flattened: height, width and channels of what `Network.flatten` made the input of an affine
        layer, by the name of its kernel.
    """

    name: str
    dataset: str
    elements: tuple[Element, ...]
    num_classes: int
    variables: tuple[VariableSpec, ...]
    forward_flops_per_image: int
    training_flops_per_image: int
    flattened: Mapping[str, tuple[int, int, int]] = dataclasses.field(default_factory=dict)

    @property
    def input_shape(self) -> str:
        """The features in words: ``224x224x3``, and scalars by their names."""
        features = of_role(self.elements, "feature")
        return ", ".join("x".join(map(str, one.shape)) or one.name for one in features)

    @property
    def parameters(self) -> int:
        """Elements of all variables, frozen ones included, except the moving averages."""
        return sum(v.size for v in self.variables if not v.statistic)

    @property
    def trainable_parameters(self) -> int:
        """Elements that the optimizer updates."""
        return sum(v.size for v in self.variables if v.trainable)

    @property
    def statistics(self) -> int:
        """Elements of the moving averages that batch norm keeps for evaluation."""
        return sum(v.size for v in self.variables if v.statistic)
