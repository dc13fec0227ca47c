"""Signum, momentum of which only signs count (Bernstein et al., arXiv:1802.04434, algorithm 2):
cnnbench --plugin=docs/examples/signum_plugin.py --optimizer=signum --momentum=0.9.
"""

from typing import Any

from cnnbench.optimizers import OPTIMIZERS, OptimizerSpec, Slot, register_optimizer


def update(weight: Any, gradient: Any, rate: Any, mean: Any, momentum: float) -> tuple[Any, Any]:
    """The amount that is subtracted from the weight, and the new mean of gradients."""
    import tensorflow as tf  # here, so that --help and refusals do not load it

    mean = momentum * mean + (1.0 - momentum) * gradient
    return rate * tf.sign(mean), mean


register_optimizer(
    OptimizerSpec(
        name="signum",
        formula="m = momentum m + (1 - momentum) g, w -= lr sign(m)",
        update=update,
        slots=(Slot("mean", "mean"),),
        constants={"momentum": OPTIMIZERS.constants["momentum"]},
    )
)
