"""What is measured after a run, and when an evaluator waits no longer; nothing runs here."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import ClassVar

import pytest

from cnnbench.errors import DataError
from cnnbench.flags import Params
from cnnbench.plan import make_plan
from cnnbench.records import checkpoints
from cnnbench.records.input import InputStage
from cnnbench.records.measurements import Measurements
from cnnbench.run.driver import scenarios
from cnnbench.run.driver.scenarios import TrainingEndDetector, measure_speed_limits, run_work
from cnnbench.run.driver.work import ForwardWork, InputWork, TrainingWork
from cnnbench.run.runtime.peak_flops import PeakFlops

PEER = {"worker_hosts": "a:1,b:1", "job_name": "worker"}
TOGETHER = {**PEER, "variable_update": "collective_all_reduce"}


class Ended:
    """A run that has ended."""

    def __init__(self, kind="cpu", group=None, inputs=None, **flags):
        self.told, self.closed = [], 0
        plan = make_plan(Params(**{"model": "lenet", "device": kind, **flags}))
        measurements = Measurements(command=[], config={})
        messages = SimpleNamespace(warning=lambda *of: self.told.append(of))
        self.run = SimpleNamespace(plan=plan, measurements=measurements, messages=messages)
        devices = SimpleNamespace(kind=kind, job=plan.place.job.with_devices(kind))
        self.work = SimpleNamespace(devices=devices, close=self.close)
        if inputs is not None:
            own = self

            class Closing(ForwardWork):
                """Work that only reads."""

                def close(self):
                    own.close()

            parts = {"step": None, "checkpoints": None, "exporters": ()}
            manager = SimpleNamespace(workers=group)
            self.work = Closing(devices=devices, inputs=inputs, manager=manager, **parts)

    def close(self):
        self.closed += 1

    def measured(self):
        measure_speed_limits(self.run, self.work)
        assert self.closed == 1
        return self.run.measurements.make_record()


@pytest.fixture
def asked(limits):
    """The arguments with which the peak of the devices was asked for: it is 1e12 FLOP/s."""
    asked = []

    def peak_flops(*of):
        asked.append(of)
        return PeakFlops(1e12, "published")

    limits(scenarios, peak_flops=peak_flops)
    return asked


@pytest.mark.parametrize(
    ("kind", "flags", "factor"),
    [
        ("cpu", {}, 1),
        ("cpu", {"num_gpus": 4}, 1),
        ("cpu", TOGETHER, 2),  # on two machines
        ("cpu", {**TOGETHER, "worker_hosts": "a:1,a:2"}, 1),
        ("gpu", {"num_gpus": 4}, 1),
        ("gpu", {"num_gpus": 4, "gpus_per_card": 2}, 2 / 4),
        ("gpu", {**TOGETHER, "worker_hosts": "a:1,a:2"}, 2),
        # One process drives the devices of all, of which the peak is the sum already.
        ("gpu", {**PEER, "variable_update": "distributed_replicated", "ps_hosts": "a:2"}, 1),
    ],
)
def test_the_peak_is_that_of_the_whole_job(kind, flags, factor, asked):
    measured = Ended(kind, **flags).measured().measured
    assert measured.peak_flops_per_sec == pytest.approx(factor * 1e12)
    assert measured.peak_flops_source == "published"
    ((found_kind, devices, dtype, given),) = asked
    assert (found_kind, dtype, given) == (kind, "float32", None)
    assert len(devices) >= flags.get("num_gpus", 1)


@pytest.mark.parametrize(
    ("flags", "lost", "asks"),
    [
        ({}, [], True),
        ({}, ["worker:1"], False),
        ({**TOGETHER, "task_index": 1}, [], False),  # which the chief does
    ],
)
def test_the_peak_is_left_out_where_nothing_can_measure_it(flags, lost, asks, asked):
    ended = Ended(**flags)
    ended.run.measurements.lost_workers += lost
    assert (ended.measured().measured.peak_flops_per_sec is not None) == asks
    assert len(asked) == asks


def test_an_unknown_peak_is_none(limits):
    limits(scenarios, peak_flops=lambda *of: None)
    assert Ended().measured().measured.peak_flops_per_sec is None


class Group:
    """Two workers, of which the other tells something about its input."""

    def __init__(self, other):
        self.other = other

    def gather_bytes(self, data):
        return [data, json.dumps(self.other).encode()]


@pytest.fixture
def timed(limits, asked):
    """timed(ERROR): an input that reads 200 examples in two seconds, or fails."""

    def change(error=None):
        def time_input(inputs, in_step):
            assert in_step
            if error is not None:
                raise error
            return InputStage(name="device", examples=200, seconds=2.0)

        limits(scenarios, time_input=time_input)

    return change


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (None, (200, 2.0)),
        # In each step, all wait for the slower one.
        (Group({"name": "device", "examples": 100, "seconds": 4.0}), (200, 4.0)),
    ],
)
def test_the_input_alone_is_that_of_all_workers(group, expected, timed):
    timed()
    ended = Ended(inputs=object(), group=group)
    vars(ended.run.plan.params)["data_dir"] = "somewhere"
    (stage,) = ended.measured().input_stages
    assert (stage.name, stage.examples, stage.seconds) == ("device", *expected)
    assert ended.told == []


@pytest.mark.parametrize("group", [None, Group({"error": "torn"})])
def test_an_input_that_fails_after_the_run_is_a_warning(group, timed):
    timed(DataError("a record") if group is None else None)
    ended = Ended(inputs=object(), group=group)
    vars(ended.run.plan.params)["data_dir"] = "somewhere"
    assert ended.measured().input_stages == ()
    ((text, name),) = ended.told
    assert name == "pipeline"
    assert ("a record" if group is None else "torn") in text


@pytest.mark.parametrize("lost", [True, False])
def test_without_files_or_after_a_loss_no_input_is_measured(lost, timed):
    timed(AssertionError())
    ended = Ended(inputs=object())
    if lost:
        vars(ended.run.plan.params)["data_dir"] = "somewhere"
        ended.run.measurements.lost_workers.append("worker:1")
    assert ended.measured().input_stages == ()


# The end of a training, as its evaluator sees it -------------------------------------------------


@pytest.fixture
def clock(monkeypatch):
    """The seconds of the evaluator's clock, in a list."""
    now = [100.0]
    monkeypatch.setattr(scenarios, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_an_evaluator_waits_for_a_checkpoint_until_its_time_is_up(clock, tmp_path):
    end = TrainingEndDetector(str(tmp_path), 20)
    waits = []
    for clock[0] in (100.0, 112.0, 119.5, 120.0, 130.0):
        end.read_training_status()
        waits.append((end.seconds_to_wait(9), bool(end.end_reason())))
    assert waits == [(9, False), (8.0, False), (0.5, False), (0.0, True), (0.0, True)]
    end.restart_time_limit()
    assert (end.seconds_to_wait(9), end.end_reason()) == (9, "")
    unlimited = TrainingEndDetector(str(tmp_path), 0)
    clock[0] = 1e9
    assert (unlimited.seconds_to_wait(9), unlimited.end_reason()) == (9, "")


@pytest.mark.parametrize(
    ("statuses", "ends"),
    [
        ([None, None], [False, False]),
        (["running", "running"], [False, False]),
        (["running", "ok"], [False, True]),
        # The first may be of an earlier training that is about to go on.
        (["ok", "ok"], [False, True]),
        (["ok", "running", "running", "failed"], [False, False, False, True]),
        (["ok", "failed", "failed"], [False, False, True]),
    ],
)
def test_a_training_has_ended_if_it_says_so_twice_or_was_seen_running(statuses, ends, tmp_path):
    end, found = TrainingEndDetector(str(tmp_path), 0), []
    for status in statuses:
        if status is not None:
            text = checkpoints.RUNNING if status == "running" else status
            checkpoints.write_training_status(tmp_path, text)
        end.read_training_status()
        found.append(bool(end.end_reason()))
    assert found == ends


# The loop ----------------------------------------------------------------------------------------


class Loop:
    """A loop of five steps, in three seconds."""

    loop_seconds = 3.0
    made: ClassVar[list[Loop]] = []

    def __init__(self, run, work, interrupts, **of):
        self.run_of, self.of = run, of
        self.made.append(self)

    def run(self, steps):
        self.steps, self.turns = steps, self.run_of.membership.turns
        return 40.0 * steps


@pytest.fixture
def loop(monkeypatch):
    for name, stand_in in (
        ("Training", Loop),
        ("SharedInterrupts", lambda group: None),
        ("time_stages", lambda inputs, count: (InputStage(name="a", examples=count, seconds=1),)),
        ("begin", lambda run, work: (0, 5)),
        ("export_weights", lambda exporters, messages: None),
    ):
        monkeypatch.setattr(scenarios, name, stand_in)
    monkeypatch.setattr(Loop, "made", [])


@pytest.mark.parametrize(
    ("epochs", "examples", "told"), [(0.5, 64, 1), (0.5, 65, 0), (1, 64, 0), (0.99, 3, 1)]
)
def test_the_input_alone_is_timed_as_a_whole_and_by_stages(epochs, examples, told, loop):
    measurements, notices, closed, turns = Measurements(command=[], config={}), [], [], object()
    measurements.timed.seconds.extend([0.5] * 5)
    run = SimpleNamespace(
        plan=SimpleNamespace(length=SimpleNamespace(batches=5, global_batch=8, epochs=epochs)),
        measurements=measurements,
        membership=SimpleNamespace(turns=turns),
        messages=SimpleNamespace(notice=notices.append),
    )
    inputs = SimpleNamespace(
        close=lambda: closed.append(1),
        examples_per_epoch=examples,
        spec=SimpleNamespace(shuffle_buffer=64),
    )
    work = InputWork(devices=None, step=None, inputs=inputs)
    assert run_work(run, work) == 200.0
    (made,) = Loop.made
    assert made.turns is not turns
    assert run.membership.turns is turns
    assert closed == [1]
    assert len(notices) == told
    stages = measurements.make_record().input_stages
    assert [(stage.examples, stage.seconds) for stage in stages] == [(40, 1), (40, 3.0)]


@pytest.mark.parametrize(
    ("workers", "copies", "start", "end"),
    [(None, 1, 8.0, 4.0), (None, 2, None, None), (object(), 1, None, None)],
)
def test_copies_are_compared_where_there_are_two(workers, copies, start, end, loop, monkeypatch):
    variables = {
        name: SimpleNamespace(primary=SimpleNamespace(trainable=trainable), copies=[0] * copies)
        for name, trainable in (("w", True), ("mean", False))
    }
    manager = SimpleNamespace(
        workers=workers, replicas_in_sync=True, savable_variables=lambda: variables
    )
    values = iter([start, end])

    class Scale:
        value = property(lambda self: next(values))

    step = SimpleNamespace(loss_scale=Scale(), graph=None)
    parts = {"checkpoints": None, "exporters": (), "devices": None, "inputs": None}
    work = TrainingWork(manager=manager, step=step, **parts)
    checks = []

    def check(*of):
        checks.append(of)
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr(scenarios, "ReplicaCheck", check)
    measurements = Measurements(command=[], config={})
    plan = make_plan(Params(model="lenet", device="cpu", check_replica_consistency=3))
    run = SimpleNamespace(plan=plan, measurements=measurements, profiler=None, messages=None)
    run.membership = SimpleNamespace(turns=None)
    assert run_work(run, work) == 200.0
    compared = workers is not None or copies == 2
    assert checks == [((variables["w"],), 3, measurements, workers)] * compared
    scaling = measurements.make_record().loss_scaling
    assert (scaling and (scaling.start, scaling.end)) == (start and (start, end))


@pytest.mark.parametrize(
    ("flags", "newest"),
    [
        ({"eval": True, "train_dir": "somewhere"}, True),
        ({"eval": True, "train_dir": "somewhere/model-5"}, False),
        ({"train_dir": "somewhere/model-5"}, True),
    ],
)
def test_summaries_of_an_evaluation_are_of_the_newest_unless_one_is_named(
    flags, newest, loop, monkeypatch
):
    made = []

    def summaries(folder, newest):
        made.append((folder, newest))
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr(scenarios, "EvaluationSummaries", summaries)
    monkeypatch.setattr(checkpoints, "is_checkpoint_prefix", lambda path: path.endswith("-5"))
    params = SimpleNamespace(**{**vars(Params()), **flags, "eval_dir": "there"})
    plan = SimpleNamespace(
        params=params,
        summarizes_evaluations=True,
        work=SimpleNamespace(trains="eval" not in flags),
    )
    measurements = SimpleNamespace(
        parts=SimpleNamespace(config={}), update_record=lambda **of: None
    )
    run = SimpleNamespace(plan=plan, measurements=measurements, profiler=None, messages=None)
    run.membership = SimpleNamespace(turns=None)
    step = SimpleNamespace(loss_scale=SimpleNamespace(value=None), graph=None)
    parts = {"checkpoints": None, "exporters": (), "devices": None, "inputs": None}
    run_work(run, ForwardWork(manager=SimpleNamespace(workers=None), step=step, **parts))
    assert made == [("there", newest)]
