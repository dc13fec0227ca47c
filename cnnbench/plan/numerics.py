"""Number formats, losses and optimizer of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cnnbench.flags.params import Params
from cnnbench.optimizers.registry import OPTIMIZERS
from cnnbench.optimizers.spec import OptimizerSpec
from cnnbench.plan.part import PlanPart
from cnnbench.plan.work import Work

DEFAULT_FP16_LOSS_SCALE = 128.0

COMPUTE_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "int8": "float32"}
"""Compute dtype by --precision; with int8, that of everything but convolutions."""


@dataclass(frozen=True, kw_only=True)
class Numerics(PlanPart):
    """Number formats, losses and optimizer; other fields are the flags of their names.

    Attributes:
      dtype: compute dtype, such as "bfloat16".
      loss_scale: factor on the loss in the first step; 1 except for fp16.
      scale_doubles_after: good steps after which an automatic loss scale doubles; None if the scale
        is constant.
      frozen: whether variables are constants of the graph.
      optimizer: declaration of the optimizer.
      constants: values of the optimizer's flags by name.
    """

    precision: str
    dtype: str
    fp16_vars: bool
    loss_scale: float
    scale_doubles_after: int | None
    frozen: bool
    data_format: str
    xla_compile: bool
    optimizer: OptimizerSpec
    constants: Mapping[str, float]
    weight_decay: float
    label_smoothing: float
    loss_type_to_report: str
    print_training_accuracy: bool
    bn_stats: str
    tf_random_seed: int
    allow_nonfinite: bool
    check_replica_consistency: int

    @classmethod
    def resolved(cls, flags: Params, work: Work) -> Numerics:
        """The numerics that the flags ask for."""
        scaled = flags.precision == "fp16"
        automatic = scaled and work.trains and flags.fp16_enable_auto_loss_scale
        optimizer = OPTIMIZERS.find(flags.optimizer)
        return cls.of(
            flags,
            dtype=COMPUTE_DTYPES[flags.precision],
            loss_scale=(flags.fp16_loss_scale or DEFAULT_FP16_LOSS_SCALE) if scaled else 1.0,
            scale_doubles_after=flags.fp16_inc_loss_scale_every_n if automatic else None,
            frozen=flags.forward_only and flags.freeze_when_forward_only,
            optimizer=optimizer,
            constants=optimizer.values(flags),
        )
