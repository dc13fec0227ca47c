import pytest

from cnnbench.metrics.policy import Policy, Verdict
from cnnbench.metrics.registry import METRICS, accuracy, memory, startup, throughput
from cnnbench.records.run import Batch, Evaluation, Measured, StartupSeconds


def test_throughput_is_the_global_batch_over_the_median_step(runs):
    # Steps of 1, 2 and 6 s: the median, 2 s, not the mean, 3 s; 32 images in all.
    record = runs(
        None, step_seconds=(6.0, 1.0, 2.0), batch=Batch(per_device=8, global_=32), losses=()
    )
    assert throughput(record) == 16.0
    # An even number: the mean of the two in the middle, (2 + 4) / 2.
    record = runs(None, step_seconds=(2.0, 9.0, 1.0, 4.0), batch=Batch(per_device=6, global_=6))
    assert throughput(record) == 2.0


def test_throughput_of_an_evaluation_run(runs):
    evaluations = tuple(
        Evaluation(global_step=step, top_1=0.5, top_5=0.9, examples=10, images_per_sec=rate)
        for step, rate in ((1, 10.0), (2, 30.0), (3, 20.0))
    )
    record = runs(None, flags={"eval": True}, evaluations=evaluations)
    assert throughput(record) == 20.0
    # Evaluations between steps are not what a training run without timed steps is about.
    assert throughput(runs(None, evaluations=evaluations)) is None
    assert accuracy(record) == 0.5


def test_what_was_not_measured_is_none(runs):
    record = runs(None)
    assert [metric.value(record) for metric in METRICS.values()] == [None] * 4
    assert throughput(runs(100.0, batch=None)) is None
    partly = StartupSeconds(import_=1.0, build=None, first_step=1.0)
    assert startup(runs(startup_seconds=partly)) is None


def test_memory_and_startup(runs):
    assert memory(runs(measured=Measured(peak_memory_bytes=5))) == 5.0
    seconds = StartupSeconds(import_=1.0, build=2.0, first_step=4.0)
    assert startup(runs(startup_seconds=seconds)) == 7.0


@pytest.mark.parametrize(
    ("name", "better", "worse"),
    [
        ("throughput", "faster", "slower"),
        ("memory", "less", "more"),
        ("startup", "quicker", "longer"),
        ("accuracy", "better", "worse"),
    ],
)
def test_words(name, better, worse):
    metric = METRICS[name]
    assert metric.word(Verdict.FASTER) == better
    assert metric.word(Verdict.SLOWER) == worse
    assert metric.word(Verdict.NOT_COMPARABLE) == "not comparable"


def test_thresholds():
    policy = Policy()
    assert METRICS["throughput"].smallest_change(policy, 1.0) == 0.03
    assert METRICS["startup"].smallest_change(policy, 1.0) == 0.2
    assert METRICS["accuracy"].smallest_change(policy, 0.7) == 0.005
    # 16 MiB are 10 % of 160 MiB, and less than 5 % of anything above 320 MiB.
    assert METRICS["memory"].smallest_change(policy, 160 * 2**20) == pytest.approx(0.1)
    assert METRICS["memory"].smallest_change(policy, 1000 * 2**20) == 0.05
