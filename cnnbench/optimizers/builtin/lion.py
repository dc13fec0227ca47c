"""The optimizer Lion (Chen et al., "Symbolic discovery of optimization algorithms", NeurIPS 2023).

The update follows algorithm 2. The defaults are from the paper.
"""

from __future__ import annotations

from cnnbench import lazy_tensorflow as tf
from cnnbench.arrays import Tensor
from cnnbench.optimizers.spec import Constant, OptimizerSpec, Slot


def update(
    weight: Tensor,
    gradient: Tensor,
    rate: Tensor,
    decay: float,
    m: Tensor,
    beta1: float,
    beta2: float,
) -> tuple[Tensor, ...]:
    """Computes a Lion update. See `OptimizerSpec` for the arguments and the result."""
    step = tf.sign(beta1 * m + (1.0 - beta1) * gradient)
    step = rate * (step + decay * weight if decay else step)
    return step, beta2 * m + (1.0 - beta2) * gradient


OPTIMIZER = OptimizerSpec(
    name="lion",
    formula="w -= lr (sign(beta1 m + (1 - beta1) g) + weight_decay w), then "
    "m = beta2 m + (1 - beta2) g",
    update=update,
    slots=(Slot("m", "m"),),
    constants={
        "beta1": Constant(
            "lion_beta1", 0.9, "Weight of the momentum in a step", minimum=0, below=1
        ),
        "beta2": Constant("lion_beta2", 0.99, "Decay of the momentum", minimum=0, below=1),
    },
    decoupled=True,
)
