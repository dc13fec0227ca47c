"""Ways of clipping gradients, each with the flag that sets its threshold.

The flags are declared without TensorFlow, so only the functions import it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from cnnbench import lazy_tensorflow as tf
from cnnbench.arrays import Tensor


class ClippedVariable(NamedTuple):
    """A variable whose gradient is clipped.

    `name` is the name that the network declares, such as "conv0/kernel", and is the same in all
    modes. `device` is the full name of the device of the variable.
    """

    name: str
    device: str


class Clipping(NamedTuple):
    """A way of clipping, which a run uses if its flag is given.

    Attributes:
      help: the help of the flag, whose value N is the clipping threshold.
      clip: function that clips gradients that are applied together on one device. Its arguments are
        the reduced float32 gradients without loss scale, their variables, and the threshold.
    """

    help: str
    clip: Callable[[Sequence[Tensor], Sequence[ClippedVariable], float], list[Tensor]]


def _clip_by_value(
    gradients: Sequence[Tensor], variables: Sequence[ClippedVariable], bound: float
) -> list[Tensor]:
    """Clips every element of the gradients to [-bound, bound], each on its device."""
    clipped = []
    for gradient, variable in zip(gradients, variables, strict=True):
        with tf.device(variable.device):
            clipped.append(tf.clip_by_value(gradient, -bound, bound))
    return clipped


CLIPPINGS: dict[str, Clipping] = {
    "gradient_clip": Clipping(
        "Clip every element of the reduced gradients to the range from -N to N.", _clip_by_value
    ),
}
"""Ways of clipping by the name of their flag, in the order in which they are applied."""
