"""The optimizer LAMB for large batches (You et al., ICLR 2020).

The paper is "Large batch optimization for deep learning: training BERT in 76 minutes". The update
follows algorithm 2, with the identity for phi.

As in the authors' code, epsilon is 1e-6, and the trust ratio is 1 if a norm is zero. For scalars
and vectors (biases, variables of normalisation layers), the trust ratio is also 1. The authors
exclude these variables by name instead.
"""

from __future__ import annotations

from typing import Any

from cnnbench.arrays import Tensor
from cnnbench.optimizers.builtin.adam import BETA1, BETA2, POWERS, REFUSES_FP16, SLOTS
from cnnbench.optimizers.builtin.adamw import adam_update_and_moments
from cnnbench.optimizers.builtin.lars import l2_norm, trust_ratio
from cnnbench.optimizers.spec import Constant, OptimizerSpec


def update(
    weight: Tensor, gradient: Tensor, rate: Tensor, decay: float, **state: Any
) -> tuple[Tensor, ...]:
    """Computes a LAMB update. See `OptimizerSpec` for the arguments and the result."""
    scale, ratio, m, v = adam_update_and_moments(gradient, **state)
    step = scale * ratio + decay * weight if decay else scale * ratio
    return (rate * trust_ratio(weight, lambda _: l2_norm(step))) * step, m, v


OPTIMIZER = OptimizerSpec(
    name="lamb",
    formula="r = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon) + weight_decay w with m "
    "and v as adam, w -= lr |w| / |r| r, without the ratio of norms for scalars and vectors",
    update=update,
    slots=SLOTS,
    constants={
        "beta1": BETA1,
        "beta2": BETA2,
        "epsilon": Constant("lamb_epsilon", 1e-6, "Added to the denominator", minimum=0),
    },
    powers=POWERS,
    decoupled=True,
    refuses_fp16=REFUSES_FP16,
    mlperf={
        "opt_lamb_beta_1": "adam_beta1",
        "opt_lamb_beta_2": "adam_beta2",
        "opt_lamb_epsilon": "lamb_epsilon",
        "opt_lamb_weight_decay_rate": "weight_decay",
    },
)
