"""What a training step computes, in numbers and policies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cnnbench.models.graph import DataFormat


@dataclass(frozen=True)
class StepConfig:
    """The numbers and policies of a step.

    Attributes:
      data_format: "NHWC" or "NCHW".
      compute_dtype: "float32", "bfloat16" or "float16"; weights, batch norm, loss
        and weight decay are float32 whatever it is.
      weight_decay: factor of the L2 loss, 0 for none.
      gradient_clip: bound c of the elementwise clipping to [-c, c], or None.
      gradient_reduction: "mean" or "sum" over towers.
      bn_stats: "first" or "mean".
      report_total_loss: whether the reported loss includes the L2 loss.
      accuracy: whether top-1 and top-5 accuracies are computed too.
      forward_only: only logits are computed; in place of the loss stands their mean.
      xla_compile: compile each tower's forward and backward pass with XLA.
      seed: of dropout.
    """

    data_format: DataFormat = "NHWC"
    compute_dtype: str = "float32"
    weight_decay: float = 0.0
    gradient_clip: float | None = None
    gradient_reduction: str = "mean"
    bn_stats: str = "first"
    report_total_loss: bool = True
    accuracy: bool = False
    forward_only: bool = False
    xla_compile: bool = False
    seed: int = 0
