"""The L2 gradient of a weight that nothing else depends on.

test_saved_updates.py and test_variable_update_oracle.py have that of others, clipped and deferred.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import short_runs
from short_runs import KINDS, RATE

pytestmark = pytest.mark.usefixtures("quick_start")

DECAY = 0.25


POLICIES = [("mean", "fp32"), ("sum", "fp32"), ("mean", "fp16")]


@pytest.mark.parametrize(
    ("mode", "towers", "reduction", "precision"),
    [
        # test_saved_updates.py has pairs of all of these and more.
        *(
            pytest.param(*mode.values, 2, *policy, id=f"{mode.id}-{'-'.join(policy)}")
            for mode, policy in zip(KINDS, itertools.cycle(POLICIES))
        ),
        pytest.param(*KINDS[0].values, 1, *POLICIES[1], id="alone"),
    ],
)
def test_a_weight_without_any_other_gradient_decays(
    mode: dict[str, str], towers: int, reduction: str, precision: str
) -> None:
    built = short_runs.build(
        "curved",
        **mode,
        weight_decay=DECAY,
        num_gpus=towers,
        gradient_reduction=reduction,
        precision=precision,
        fp16_enable_auto_loss_scale=precision == "fp16",
    )
    summed = towers if reduction == "sum" and mode["variable_update"] != "independent" else 1
    expected = np.full(2, 1.7)
    for _ in range(3):
        built.step().loss.numpy()
        expected -= RATE * DECAY * summed * expected
    for copy in built.manager.savable_variables()["detached"].copies:
        np.testing.assert_allclose(copy.numpy(), expected, rtol=1e-6)
