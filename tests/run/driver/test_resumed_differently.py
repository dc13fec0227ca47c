"""Whether a resumed training takes the same steps as one without an interruption.

test_restore.py has the notices.
"""

from __future__ import annotations

import io
import shutil

import numpy as np
import pytest
from short_runs import TINY

from cnnbench import BenchmarkCNN, Params
from cnnbench.base.terminal import MessageWriter

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_start")]


def losses_and_notices(steps, **flags):
    """Losses of the timed steps, and what the run told."""
    told = io.StringIO()
    given = {**TINY, "num_warmup_batches": 0, "num_batches": steps, **flags}
    run = BenchmarkCNN(Params.from_dict(given), messages=MessageWriter(told))
    losses = list(run.run().losses)
    return losses, [
        line for line in told.getvalue().splitlines() if "continues differently" in line
    ]


REPLICATED = {"variable_update": "replicated", "num_gpus": 2}


@pytest.mark.parametrize(
    ("flags", "notice"),
    [
        ({"variable_update": "independent", "num_gpus": 2}, "the first device only"),
        ({"staged_vars": True}, "--staged_vars"),
        ({**REPLICATED, "variable_consistency": "relaxed"}, "relaxed"),
        (REPLICATED, ""),
    ],
)
def test_what_is_not_saved_is_told(tmp_path, flags, notice):
    whole, _ = losses_and_notices(6, **flags)
    first, none = losses_and_notices(3, train_dir=str(tmp_path), **flags)
    rest, told = losses_and_notices(6, train_dir=str(tmp_path), **flags)
    assert none == []
    assert len(told) == bool(notice)
    assert notice in "".join(told)
    assert np.allclose(first + rest, whole, rtol=1e-5) == (not notice)


@pytest.mark.parametrize(
    ("flags", "plain"),
    [
        # Both devices have the same variables after the restart, as if gradients were reduced.
        ({"variable_update": "independent"}, {"variable_update": "replicated"}),
        ({"staged_vars": True}, {}),
    ],
)
def test_the_first_step_uses_the_saved_variables_on_all_devices(tmp_path, flags, plain):
    saved, copied = tmp_path / "saved", tmp_path / "copied"
    losses_and_notices(3, train_dir=str(saved), num_gpus=2, **flags)
    shutil.copytree(saved, copied)
    (first,), _ = losses_and_notices(4, train_dir=str(saved), num_gpus=2, **flags)
    (expected,), _ = losses_and_notices(4, train_dir=str(copied), num_gpus=2, **plain)
    assert first == pytest.approx(expected, rel=1e-5)
