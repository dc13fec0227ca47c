"""Learning rates of models, as plain data."""

from __future__ import annotations

import dataclasses
import math

from cnnbench.errors import UsageError


@dataclasses.dataclass(frozen=True)
class LearningRateSpec:
    """A model's default learning-rate schedule, as plain data.

    The rate is ``base * factors[k]``, where k is the number of boundaries that have passed. With
    ``base_batch``, it is also multiplied by global batch size / ``base_batch``. During the first
    ``warmup_epochs``, it increases linearly from 0. With ``decay_epochs``, there are no boundaries:
    the rate is multiplied by ``decay_factor`` after each period of ``decay_epochs``.

    Attributes:
      base_batch: global batch size for which ``base`` is the rate; None if the rate does not depend
        on the batch size.
      boundaries_epochs: epochs at which the factor changes; strictly increasing.
      factors: factors of the rate; one more than boundaries.
      whole_batches: whether an incomplete last batch of an epoch is ignored when boundaries are
        converted to steps.
      decay_epochs: epochs between two decays; 0 for no decay.
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
        for value in (self.base, *self.factors):
            if not 0 <= value < math.inf:
                raise UsageError(f"learning rate {value} must be finite and at least 0")
        if len(self.factors) != len(self.boundaries_epochs) + 1:
            raise UsageError(
                f"a learning rate with {len(self.boundaries_epochs)} boundaries needs "
                f"{len(self.boundaries_epochs) + 1} factors, not {len(self.factors)}"
            )
        if self.boundaries_epochs and self.decay_epochs:
            raise UsageError("a learning rate can have boundaries or a decay, but not both")
        if list(self.boundaries_epochs) != sorted(set(self.boundaries_epochs)):
            raise UsageError(
                f"learning rate boundaries {self.boundaries_epochs} must increase strictly"
            )

    @classmethod
    def cosine(
        cls, base: float, *, base_batch: int, epochs: int, warmup_epochs: float
    ) -> LearningRateSpec:
        """Creates a cosine decay of the learning rate, which changes once per epoch.

        Source: Loshchilov and Hutter, arXiv:1608.03983.
        """
        return cls(
            base,
            base_batch=base_batch,
            boundaries_epochs=tuple(float(epoch) for epoch in range(1, epochs)),
            factors=tuple((1.0 + math.cos(math.pi * k / epochs)) / 2 for k in range(epochs)),
            warmup_epochs=warmup_epochs,
        )
