"""What is said about step times when a run is over."""

from __future__ import annotations

import pytest

from cnnbench.driver.notices import peak_warning, steady_state_notice, warm_up_warning
from cnnbench.records.measurements import Measurements
from cnnbench.records.run import Batch, ModelInfo


def record(warmup, timed, status="fixed"):
    run = Measurements(command=[], config={})
    for seconds in warmup:
        run.add_warmup_step(seconds)
    for seconds in timed:
        run.add_step(seconds)
    run.warmup_status = status
    return run.record()


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (record([], [0.02] * 10), None),
        (record([0.02] * 100, []), None),
        (record([0.02] * 10, [0.02] * 90), ("step times are steady from warm-up step 1 on", False)),
        (
            record([0.5] + [0.02] * 9, [0.02] * 90),
            ("step times are steady from warm-up step 2 on", False),
        ),
        (record([], [0.02] * 90), ("step times are steady from step 1 on", False)),
        (
            record([0.03] * 10, [0.03] * 15 + [0.02] * 85),
            (
                "step times are steady only from step 16 on, after 15 of 100 timed steps; "
                "--num_warmup_batches=25 or --warmup=auto would leave them out",
                True,
            ),
        ),
        (
            record([0.03] * 10, [0.03] * 15 + [0.02] * 85, "limit"),
            ("step times are steady only from step 16 on, after 15 of 100 timed steps", True),
        ),
        (
            record([0.02] * 10, [0.02] * 50 + [0.03] * 50),
            (
                "step times are steady only from step 51 on, after 50 of 100 timed steps, and "
                "slower than before: from 20 to 30 ms",
                True,
            ),
        ),
        (
            record([0.02] * 10, [0.02] * 90 + [0.03] * 10),
            (
                "step times reached no steady state: the last change, from 20 to 30 ms, came at "
                "step 91; a longer run or a quieter machine would tell more",
                True,
            ),
        ),
    ],
)
def test_steady_state(run, expected):
    assert steady_state_notice(run) == expected


def test_warm_up_at_its_limit():
    assert warm_up_warning(record([0.02] * 40, [0.02], "steady")) is None
    assert warm_up_warning(record([0.02] * 40, [0.02], "limit")) == (
        "step times were not steady after 40 warm-up steps, the most that --max_warmup_batches "
        "allows; timing began nevertheless"
    )


@pytest.mark.parametrize(
    ("peak", "source", "expected"),
    [
        (None, None, None),
        (6000.0, "measured: matmul", None),
        (
            4000.0,
            "measured: matmul",
            "MFU is 150%: the peak (measured: matmul) is too low; it was measured while the "
            "machine had other work to do; measure again on a quiet machine",
        ),
        (
            5000.0,
            "given: --peak_flops",
            "MFU is 120%: the peak (given: --peak_flops) is too low; --peak_flops would correct it",
        ),
    ],
)
def test_more_than_the_peak(peak, source, expected):
    run = Measurements(command=[], config={})
    # 8 images of 15 FLOP in 0.02 s.
    run.batch = Batch(per_device=8, global_=8)
    run.model = ModelInfo(
        name="lenet",
        parameters=1,
        trainable_parameters=1,
        forward_flops_per_image=5,
        training_flops_per_image=15,
    )
    run.add_step(0.02)
    run.peak_flops_per_sec, run.peak_flops_source = peak, source
    assert peak_warning(run.record()) == expected
