"""The optimizer LARS for large batches (You, Gitman and Ginsburg, arXiv:1708.03888).

The paper is "Large batch training of convolutional networks". The update follows algorithm 1.

The coefficient 0.001 and the momentum 0.9 are from the paper. As in MLPerf's reference, the trust
ratio is 1 if a norm is zero. For scalars and vectors (biases, variables of batch norm), it is also
1. The reference excludes these variables by name instead.
"""

from __future__ import annotations

from collections.abc import Callable

from cnnbench import lazy_tensorflow as tf
from cnnbench.arrays import Tensor
from cnnbench.optimizers.builtin.momentum import MOMENTUM
from cnnbench.optimizers.spec import Constant, OptimizerSpec, Slot


def l2_norm(tensor: Tensor) -> Tensor:
    """Euclidean norm of a tensor over all elements, computed in one pass."""
    return tf.sqrt(2.0 * tf.nn.l2_loss(tensor))


def trust_ratio(weight: Tensor, divisor: Callable[[Tensor], Tensor], factor: float = 1.0) -> Tensor:
    """Computes the trust ratio of LARS and LAMB, factor * |w| / divisor(|w|), as a float32 scalar.

    The ratio is 1 for scalars and vectors, and if the formula results in zero or infinity.
    """
    if weight.shape.rank < 2:
        return 1.0
    size = l2_norm(weight)
    other = divisor(size)
    usual = tf.logical_and(size > 0.0, other > 0.0)
    return tf.where(usual, factor * size / tf.where(usual, other, 1.0), 1.0)


def update(
    weight: Tensor,
    gradient: Tensor,
    rate: Tensor,
    decay: float,
    velocity: Tensor,
    momentum: float,
    coefficient: float,
) -> tuple[Tensor, ...]:
    """Computes a LARS update. See `OptimizerSpec` for the arguments and the result."""
    ratio = trust_ratio(weight, lambda size: l2_norm(gradient) + decay * size, coefficient)
    step = gradient + decay * weight if decay else gradient
    velocity = momentum * velocity + (rate * ratio) * step
    return velocity, velocity


OPTIMIZER = OptimizerSpec(
    name="lars",
    formula="a = momentum a + lr lars_coefficient |w| / (|g| + weight_decay |w|) "
    "(g + weight_decay w), w -= a, without the ratio of norms for scalars and vectors",
    update=update,
    slots=(Slot("momentum", "velocity"),),
    constants={
        "momentum": MOMENTUM,
        "coefficient": Constant("lars_coefficient", 1e-3, "Factor of the trust ratio", above=0),
    },
    decoupled=True,
    refuses_fp16="steps by norms of gradients vanish in fp16",
    mlperf={
        "lars_opt_base_learning_rate": "base_rate",
        "lars_opt_end_learning_rate": "end_rate",
        "lars_opt_momentum": "momentum",
        "lars_opt_weight_decay": "weight_decay",
        "lars_opt_learning_rate_warmup_epochs": "warmup_epochs",
        "lars_epsilon": 0.0,
    },
)
