"""What --precision means in dtypes and factors."""

from __future__ import annotations

from cnnbench.flags import Params

COMPUTE_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}

_DEFAULT_FP16_LOSS_SCALE = 128.0


def initial_loss_scale(params: Params) -> float:
    """Factor on the loss in the first step: 1 but for fp16, whose range is small."""
    if params.precision != "fp16":
        return 1.0
    return params.fp16_loss_scale or _DEFAULT_FP16_LOSS_SCALE
