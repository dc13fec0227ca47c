"""The optimizer AdamW (Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019).

The update follows algorithm 2. As in PyTorch and Optax, the paper's schedule multiplier and alpha
are combined in one learning rate. The defaults are the same as for Adam.
"""

from __future__ import annotations

from typing import Any

from cnnbench import lazy_tensorflow as tf
from cnnbench.arrays import Tensor
from cnnbench.optimizers.builtin.adam import BETA1, BETA2, EPSILON, POWERS, REFUSES_FP16, SLOTS
from cnnbench.optimizers.spec import OptimizerSpec


def adam_update_and_moments(
    gradient: Tensor,
    m: Tensor,
    v: Tensor,
    beta1: float,
    beta2: float,
    epsilon: float,
    beta1_power: Tensor,
    beta2_power: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Computes the bias-corrected update of Adam. Returns a scalar factor of the update, the update
    without this factor, and the new moments.

    The product of the first two results is m^ / (sqrt(v^) + epsilon), with m^ = m / (1 - beta1^t)
    and v^ = v / (1 - beta2^t).
    """
    m = beta1 * m + (1.0 - beta1) * gradient
    v = beta2 * v + (1.0 - beta2) * tf.square(gradient)
    correction = tf.sqrt(1.0 - beta2_power)
    ratio = m / (tf.sqrt(v) + epsilon * correction)
    return correction / (1.0 - beta1_power), ratio, m, v


def update(
    weight: Tensor, gradient: Tensor, rate: Tensor, decay: float, **state: Any
) -> tuple[Tensor, ...]:
    """Computes an AdamW update. See `OptimizerSpec` for the arguments and the result."""
    scale, ratio, m, v = adam_update_and_moments(gradient, **state)
    step = (rate * scale) * ratio
    return step + (rate * decay) * weight if decay else step, m, v


OPTIMIZER = OptimizerSpec(
    name="adamw",
    formula="m and v as adam, w -= lr (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon) + "
    "weight_decay w)",
    update=update,
    slots=SLOTS,
    constants={"beta1": BETA1, "beta2": BETA2, "epsilon": EPSILON},
    powers=POWERS,
    decoupled=True,
    refuses_fp16=REFUSES_FP16,
    mlperf={
        "opt_adamw_beta_1": "adam_beta1",
        "opt_adamw_beta_2": "adam_beta2",
        "opt_adamw_epsilon": "adam_epsilon",
        "opt_adamw_weight_decay": "weight_decay",
    },
)
