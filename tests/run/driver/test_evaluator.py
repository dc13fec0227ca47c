"""An evaluator that waits for the checkpoints of a training, and ends with it.

Tests cnnbench/run/driver/scenarios.py.
"""

import pytest
from short_runs import command

from cnnbench.records import checkpoints
from cnnbench.run.driver import scenarios

pytestmark = pytest.mark.usefixtures("quick_start")


@pytest.fixture
def clock(monkeypatch):
    """The time that the evaluator sees, and what happens while it sleeps for the n-th time."""

    class Clock:
        now = 0.0
        sleeps = 0

        def __init__(self):
            self.events = {}

        def monotonic(self):
            return self.now

        def sleep(self, seconds):
            self.now += seconds
            self.sleeps += 1
            assert self.sleeps < 20, "the evaluator does not end"
            self.events.get(self.sleeps, lambda: None)()

    clock = Clock()
    monkeypatch.setattr(scenarios, "time", clock)
    return clock


@pytest.fixture
def evaluate(tmp_path, capsys):
    """evaluate(*flags): exit code, number of evaluations, stderr; each search is 9 s later."""

    def call(*flags):
        capsys.readouterr()
        waiting = ("--eval", "--eval_interval_secs=9", *flags)
        code = command(*waiting, train_dir=tmp_path / "train", num_eval_batches=1)
        out, err = capsys.readouterr()
        return code, out.count("Successfully loaded"), err

    return call


@pytest.fixture
def train(tmp_path):
    folder = tmp_path / "train"
    return lambda steps: command(train_dir=folder, num_batches=steps, num_warmup_batches=0)


def test_the_evaluator_ends_after_the_last_checkpoint(evaluate, train, clock, tmp_path):
    folder = tmp_path / "train"
    assert train(2) == 0
    assert checkpoints.read_training_status(folder) == "ok"
    checkpoints.write_training_status(folder, checkpoints.RUNNING)
    clock.events[2] = lambda: train(4)  # resumes, and ends before the next search
    code, evaluations, err = evaluate()
    assert (code, evaluations, clock.sleeps) == (0, 2, 2)
    assert "the evaluation ends: the training has ended (ok)" in err


@pytest.mark.slow
def test_the_end_of_an_earlier_training_leaves_one_interval_to_resume(
    evaluate, train, clock, tmp_path
):
    assert train(2) == 0
    assert evaluate()[:2] == (0, 1)
    assert clock.sleeps == 1
    clock.sleeps = 0
    folder = tmp_path / "train"
    clock.events[1] = lambda: checkpoints.write_training_status(folder, checkpoints.RUNNING)
    clock.events[3] = lambda: train(4)
    assert evaluate()[:2] == (0, 2)
    assert clock.sleeps == 3


def test_a_killed_training_ends_the_evaluator_by_its_timeout(evaluate, train, clock, tmp_path):
    assert train(2) == 0
    checkpoints.write_training_status(tmp_path / "train", checkpoints.RUNNING)
    code, evaluations, err = evaluate("--eval_timeout_secs=20")
    assert (code, evaluations, clock.now) == (0, 1, 20.0)
    assert "there was no new checkpoint for --eval_timeout_secs=20" in err


def test_an_evaluator_without_any_checkpoint_fails(evaluate, clock, tmp_path):
    (tmp_path / "train").mkdir()
    checkpoints.write_training_status(tmp_path / "train", "failed")
    code, evaluations, err = evaluate()
    assert (code, evaluations) == (4, 0)
    assert "and the training has ended (failed)" in err


@pytest.mark.parametrize(
    ("error", "status"), [(KeyboardInterrupt(), "interrupted"), (RuntimeError("x"), "failed")]
)
def test_a_training_that_ends_early_says_so(train, monkeypatch, tmp_path, error, status):
    seen = []

    def stop(*_):
        seen.append(checkpoints.read_training_status(tmp_path / "train"))
        raise error

    monkeypatch.setattr(scenarios, "train", stop)
    try:
        train(2)
    except RuntimeError:
        assert status == "failed"
    assert seen == [checkpoints.RUNNING]
    assert checkpoints.read_training_status(tmp_path / "train") == status
