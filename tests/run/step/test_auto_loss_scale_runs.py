"""Whole runs with an automatic loss scale: record, notices, checkpoints, failures."""

import math

import pytest
import short_runs
from covering import slow_if

from cnnbench import RunRecord
from cnnbench.run.step.loss_scale import CAP

pytestmark = pytest.mark.usefixtures("quick_start")

FLAGS = {"num_warmup_batches": 0, "precision": "fp16", "fp16_enable_auto_loss_scale": True}


def run(**flags):
    record, _, err = short_runs.run(**{**FLAGS, **flags})
    return record, err


@pytest.mark.parametrize("mode", slow_if(["independent"], ["replicated", "independent"]))
def test_a_scale_that_overflows_settles(mode):
    flags = {"num_gpus": 2, "num_warmup_batches": 2, "num_batches": 16, "fp16_loss_scale": CAP}
    record, err = run(**flags, variable_update=mode)
    record = RunRecord.from_json(record.to_json())
    scaling = record.loss_scaling
    losses = [*record.warmup_losses, *record.losses]
    assert scaling.warmup_skipped_steps == (1, 2)
    # Two in the warm-up and the first ones of the loop; a gradient that grows may come later.
    skipped = 2 + len(scaling.skipped_steps)
    at_first = 2 + sum(n == i for i, n in enumerate(scaling.skipped_steps, start=1))
    assert 2 < at_first <= skipped < 14
    assert scaling.start == CAP
    assert scaling.end == CAP / 2**skipped
    # Nothing moves while all towers skip, and training goes on from there.
    still = 2 if mode == "independent" else at_first
    assert losses[: still + 1] == pytest.approx([losses[0]] * (still + 1), rel=1e-6)
    assert losses[-1] < losses[0] * 0.99
    assert all(map(math.isfinite, losses))
    assert (
        f"cnnbench: {skipped} of 18 steps skipped for gradients that were not finite "
        "(2 of them in the warm-up); the loss scale went from 16777216 to "
    ) in err


def test_steps_that_go_well_raise_the_scale_silently_in_the_table_and_say_so_at_the_end():
    record, err = run(num_batches=6, fp16_inc_loss_scale_every_n=2, fp16_loss_scale=4.0)
    assert record.loss_scaling.skipped_steps == ()
    assert record.loss_scaling.end == 32.0
    assert "cnnbench: the loss scale went from 4 to 32\n" in err
    assert record.config["fp16_loss_scale"] == 4.0


@pytest.mark.parametrize(
    ("flags", "scales"),
    slow_if(
        [({"precision": "bf16"}, None)],
        [
            # The default is that of a constant scale.
            ({}, (128.0, 128.0)),
            ({"fp16_enable_auto_loss_scale": False}, None),
            ({"precision": "bf16"}, None),
        ],
    ),
)
def test_a_scale_is_recorded_if_it_can_change(flags, scales):
    record, err = run(num_batches=2, **flags)
    scaling = record.loss_scaling
    assert (scaling and (scaling.start, scaling.end)) == scales
    assert "loss scale" not in err


@pytest.mark.slow
def test_scale_and_counter_go_on_after_a_resume(tmp_path):
    flags = {"fp16_inc_loss_scale_every_n": 5, "train_dir": str(tmp_path)}
    first, _ = run(num_batches=7, fp16_loss_scale=64.0, **flags)
    assert first.loss_scaling.end == 128.0  # and two of the next five good steps are done
    two = {"variable_update": "replicated", "num_gpus": 2}
    for batches, later in ((10, two), (15, {"variable_update": "independent"})):
        rest, err = run(num_batches=batches, **flags, **later)
        assert len(rest.losses) == batches - (7 if later is two else 10)
        assert rest.loss_scaling.start == first.loss_scaling.end
        assert rest.loss_scaling.end == 2 * rest.loss_scaling.start
        assert "has no loss scale" not in err
        first = rest


@pytest.mark.slow
def test_checkpoints_with_and_without_a_scale_are_taken(tmp_path):
    run(num_batches=2, train_dir=str(tmp_path), fp16_enable_auto_loss_scale=False)
    record, err = run(num_batches=4, train_dir=str(tmp_path), fp16_loss_scale=32.0)
    assert "has no loss scale; the loss scale begins at --fp16_loss_scale" in err
    assert record.loss_scaling.start == 32.0
    record, err = run(num_batches=6, train_dir=str(tmp_path), precision="fp32")
    assert record.loss_scaling is None
    assert "loss scale" not in err
