"""Signum: only the signs of the mean gradient are used (Bernstein et al., arXiv:1802.04434,
algorithm 2): cnnbench --plugin=docs/examples/signum_plugin.py --optimizer=signum --signum_beta=0.9.
"""

from cnnbench.arrays import Tensor
from cnnbench.optimizers import Constant, OptimizerSpec, Slot, register_optimizer


def update(
    weight: Tensor, gradient: Tensor, rate: Tensor, mean: Tensor, beta: float
) -> tuple[Tensor, Tensor]:
    """The amount that is subtracted from the weight, and the new mean of gradients."""
    import tensorflow as tf  # here, so that --help and refusals do not load it

    mean = beta * mean + (1.0 - beta) * gradient
    return rate * tf.sign(mean), mean


register_optimizer(
    OptimizerSpec(
        name="signum",
        formula="m = beta m + (1 - beta) g, w -= lr sign(m)",
        update=update,
        slots=(Slot("mean", "mean"),),
        constants={"beta": Constant("signum_beta", 0.9, "Decay of the mean", minimum=0, below=1)},
    )
)
