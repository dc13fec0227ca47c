"""The training scenario with scripted step times: no device, no waiting.

Tests cnnbench/run/driver/context.py, cnnbench/run/driver/observers/checkpoint_saver.py,
cnnbench/run/driver/observers/evaluations.py and cnnbench/records/endings.py.
"""

import io
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from types import SimpleNamespace

import numpy as np
import pytest

from cnnbench.base.terminal import MessageWriter, ProgressLine
from cnnbench.errors import NonFiniteLossError
from cnnbench.flags import Params
from cnnbench.plan import make_plan
from cnnbench.records.measurements import Measurements
from cnnbench.records.run import Evaluation, RunRecord, TurnTaking
from cnnbench.run.driver.console import Console
from cnnbench.run.driver.context import RunContext
from cnnbench.run.driver.evaluation import EvaluationPublisher, PendingEvaluation
from cnnbench.run.driver.host_metrics import HostMetricsExecutor
from cnnbench.run.driver.membership import JobMembership
from cnnbench.run.driver.observers import checkpoint_saver
from cnnbench.run.driver.observers.checkpoint_saver import CheckpointSaver
from cnnbench.run.driver.observers.evaluations import TrainingEvaluations
from cnnbench.run.driver.observers.observer import PausingObserver
from cnnbench.run.driver.shared_interrupts import SharedInterrupts
from cnnbench.run.driver.step_loop import LoopTime, StepTime
from cnnbench.run.driver.training import Training
from cnnbench.run.driver.work import EvaluatedTrainingWork, ForwardWork, TrainingWork
from cnnbench.run.runtime.progress import ProcessActivity
from cnnbench.run.step.train_step import StepResult

FAST, SLOW = 0.02, 0.03
SETTLING = [FAST * 1.05**i for i in range(33, 0, -1)]
"""Ever faster steps, down to FAST."""


class Script:
    """Steps that take scripted times; everything that Training uses, the watch included.

    Attributes:
      times: of the steps, the last one for ever.
      rates: the global steps at which the learning rate was asked for.
      saved, evaluated: global steps of checkpoints and evaluations.
      loop: number of steps launched when the timed loop began and ended.
      host: metrics of the host of each evaluation, there at once.
      ready_at: by launched steps, the evaluations whose metrics are there from then on instead.
    """

    doubt = ""

    def __init__(self, times, losses=None, ready_at=None):
        self.host, self.ready_at = [], ready_at or {}
        self.times, self.losses = list(times), losses or {}
        self.now = 0.0
        self.launched = 0
        self.rates, self.saved, self.evaluated, self.loop = [], [], [], []
        self.wait_seconds = 0.0

    def clocks(self):
        self.now += 1e-9  # two readings of a real clock differ, too, whichever thread they are in
        return StepTime(self.now, 2.0 * self.now)

    def loop_clocks(self):
        """Two threads compute whenever time passes, and the kernel has a quarter of it."""
        return LoopTime(self.now, 1.5 * self.now, 0.5 * self.now)

    def __call__(self, learning_rate):
        self.rates.append(learning_rate)
        index = min(self.launched, len(self.times) - 1)
        loss = self.losses.get(self.launched, 1.0)
        self.launched += 1
        self.now += self.times[index]
        for late in self.ready_at.get(self.launched, ()):
            self.host[late].set_result({"map": float(late)})
        return StepResult((loss,), {})

    def copy_result_to_host(self, result, events):
        """Results are read from it alone: those of the call have no values for the host."""
        return result._replace(loss=result.loss[0])

    def save(self, directory, global_step):
        self.saved.append(global_step)

    def run(self, global_step, console, interrupts):
        self.evaluated.append(global_step)
        evaluation = Evaluation(global_step=global_step, examples=1, images_per_sec=1.0)
        self.host.append(Future())
        if not any(len(self.host) - 1 in late for late in self.ready_at.values()):
            self.host[-1].set_result({})
        return PendingEvaluation(evaluation, {"top_1": 0.5, "top_5": 0.5}, self.host[-1])

    def __enter__(self):
        self.loop.append(self.launched)

    def __exit__(self, *error):
        self.loop.append(self.launched)

    suspended = staticmethod(nullcontext)


@pytest.fixture
def run(limits):
    """run(script, FLAGS): the record, the training, and its standard output."""

    def run(script, **given):
        limits(StepTime, now=script.clocks)
        limits(LoopTime, now=script.loop_clocks)
        return trained(script, **given)

    return run


def trained(
    script, global_step=0, lag=0, steps=40, turns=None, observers=(), workers=None, **flags
):
    params = Params(**{"model": "lenet", "num_batches": 40, "display_every": 100, **flags})
    plan = make_plan(params)
    rates = plan.rates._replace(schedule=float)  # the rate of a step is its number
    vars(plan)["rates"] = rates
    out = io.StringIO()
    measurements = Measurements(command=[], config={})
    if turns is not None:
        script.suspended = turns.suspended
    context = RunContext(
        plan=plan,
        console=Console(out),
        messages=MessageWriter.silent(),
        progress_line=ProgressLine.silent(),
        files=None,
        measurements=measurements,
        watch=script,
        membership=JobMembership(plan, print, print, {}),
    )
    if turns is not None:
        context.membership.turns = turns
    parts = {"step": script, "inputs": script, "checkpoints": script, "lag": lag}
    parts |= {"devices": None, "manager": SimpleNamespace(workers=None), "exporters": ()}
    parts |= {"workers": workers or {}}
    interrupts, observers = SharedInterrupts(None), [*observers]
    if plan.checkpoint_save_folder is not None:
        observers.insert(0, CheckpointSaver(plan.checkpoint_save_folder, context, script))
    work = (TrainingWork if plan.work.trains else ForwardWork)(**parts)
    if plan.work.evaluates:
        work = EvaluatedTrainingWork(**parts, evaluator=script)
        host = HostMetricsExecutor(plan.network.model)
        results = EvaluationPublisher(context, host, ())
        observers.append(TrainingEvaluations(context, work, results, interrupts, (*observers,)))
    training = Training(context, work, interrupts, global_step=global_step, observers=observers)
    with suppress(KeyboardInterrupt):
        training.run(steps)
    return measurements.make_record(), training, out.getvalue()


AUTO = {"warmup": "auto"}
SLOWING = [0.02 * 1.05**i for i in range(60)]


@pytest.mark.parametrize(
    ("times", "flags", "status", "steps"),
    [
        ([SLOW] * 15 + [FAST], {}, "fixed", 10),
        ([0.5, FAST], AUTO, "steady", 20),
        # Looked at after 40 steps, and again after 45: then a quarter are steady.
        ([*SETTLING, FAST], AUTO, "steady", 45),
        ([FAST], {**AUTO, "num_warmup_batches": 33}, "steady", 33),
        (SLOWING, {**AUTO, "max_warmup_batches": 30}, "limit", 30),
        ([*SETTLING[-23:], FAST], {**AUTO, "max_warmup_batches": 32}, "steady", 32),
    ],
)
def test_the_length_of_a_warm_up(run, times, flags, status, steps):
    script = Script(times)
    record, training, _ = run(script, **flags)
    assert record.warmup_status == status
    assert record.warmup_step_seconds == pytest.approx((times + [FAST] * 60)[:steps])
    assert len(record.step_seconds) == 40
    assert training.global_step == steps + 40
    assert script.loop == [steps, steps + 40]


def test_warm_up_steps_train_and_count_in_the_global_step(run):
    script = Script([FAST])
    _, training, _ = run(script, global_step=7, warmup="auto")
    assert training.global_step == 67
    assert script.rates == list(map(float, range(7, 67)))


class Every(PausingObserver):
    """Is paused every so many steps, at these moments."""

    def __init__(self, steps):
        self.steps, self.moments = steps, []

    def needs_pause_after(self, global_step):
        return global_step % self.steps == 0

    def training_paused(self, moment):
        self.moments.append(moment)


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize(("begin", "steps"), [(0, [8, 16, 24]), (12, [16, 24, 32, 40])])
def test_observers_are_paused_at_global_steps_of_warm_up_and_timed_loop(run, begin, steps, lag):
    script, every = Script([FAST], losses={7: 2.0}), Every(8)
    run(script, global_step=begin, steps=20, num_warmup_batches=10, lag=lag, observers=[every])
    assert [moment.global_step for moment in every.moments] == steps
    assert [moment.learning_rate for moment in every.moments] == [step - 1 for step in steps]
    warm_up, *timed = (moment.images_per_sec for moment in every.moments)
    assert warm_up is None
    assert timed == pytest.approx([32 / FAST] * len(timed))
    assert every.moments[0].loss == (2.0 if begin == 0 else 1.0)


def test_evaluations_and_checkpoints_count_global_steps(run, tmp_path):
    flags = {"eval_during_training_at_specified_steps": (10, 20), "train_dir": str(tmp_path)}
    fixed, auto = Script([FAST]), Script([*SETTLING, FAST])
    run(fixed, save_model_steps=15, **flags)
    run(auto, save_model_steps=15, warmup="auto", **flags)
    assert fixed.evaluated == [10, 20, 10 + 40]
    assert fixed.saved == [15, 30, 45, 10 + 40]
    assert auto.evaluated == [10, 20, 45 + 40]
    assert auto.saved == [15, 30, 45, 60, 75, 45 + 40]


def test_a_resumed_training_evaluates_and_saves_at_the_steps_of_a_straight_one(run, tmp_path):
    flags = {"eval_during_training_at_specified_steps": (10, 20), "save_model_steps": 15}
    resumed = Script([FAST])
    run(resumed, global_step=12, steps=28, num_warmup_batches=10, train_dir=str(tmp_path), **flags)
    assert resumed.evaluated == [20, 50]
    assert resumed.saved == [15, 30, 45, 50]


def test_a_target_reached_in_the_warm_up_ends_the_training(run, tmp_path):
    script = Script([FAST])
    flags = {"eval_during_training_at_specified_steps": (4,), "stop_at": "top_1:0.5"}
    record, training, out = run(script, train_dir=str(tmp_path), **flags)
    assert training.global_step == 4
    assert script.evaluated == script.saved == [4]
    assert "Stopping, as eval accuracy at least 0.5 was reached" in out
    assert record.step_seconds == ()
    (evaluation,) = record.evaluations
    assert (evaluation.loop_seconds, evaluation.wall_seconds) == (None, None)


def test_a_target_that_no_evaluation_reaches_ends_nothing(run, tmp_path):
    script = Script([FAST])
    flags = {"eval_during_training_at_specified_steps": (4, 20), "stop_at": "top_1:0.6"}
    record, training, _ = run(script, train_dir=str(tmp_path), **flags)
    assert training.global_step == 50
    assert script.evaluated == [4, 20, 50]
    assert record.ended_by is None


def test_seconds_between_checkpoints_are_those_since_the_begin_or_the_last_one(monkeypatch):
    now, saved = [100.0], []
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(checkpoint_saver, "time", clock)
    params = SimpleNamespace(save_model_steps=0, save_model_secs=30)
    context = SimpleNamespace(
        plan=SimpleNamespace(params=params),
        membership=SimpleNamespace(marking_activity=lambda activity: nullcontext()),
    )
    checkpoints = SimpleNamespace(save=lambda folder, step: saved.append((folder, step)))
    saver = CheckpointSaver("there", context, checkpoints)
    now[0] = 110.0
    saver.training_begins(0, 9)
    due = []
    for now[0] in (139.5, 140.0, 171.0):
        due.append(saver.needs_pause_after(1))
    assert due == [False, True, True]
    saver.training_paused(SimpleNamespace(global_step=7))
    assert saved == [("there", 7)]
    due = []
    for now[0] in (200.5, 201.0):
        due.append(saver.needs_pause_after(1))
    assert due == [False, True]
    params.save_model_secs = 0
    assert not saver.needs_pause_after(1)


@pytest.mark.parametrize(("lag", "seconds", "steps"), [(0, 0.1, 5), (1, 0.1, 5), (0, 1e-9, 1)])
def test_a_time_limit_ends_the_timed_loop(run, tmp_path, lag, seconds, steps):
    script = Script([SLOW] * 10 + [FAST])
    flags = {"train_dir": str(tmp_path), "eval_during_training_at_specified_steps": (12,)}
    flags |= {"save_model_steps": 1000, "max_seconds": seconds}
    record, training, _ = run(script, lag=lag, turns=InTurn(script, 2), **flags)
    assert (record.status, record.ended_by) == ("ok", "max_seconds")
    assert len(record.step_seconds) == steps
    assert training.global_step == 10 + steps
    assert record.measured.loop_seconds == pytest.approx(FAST * steps, rel=0.1)
    # What comes at the end comes, after the evaluation on the way.
    assert script.evaluated == [12] * (steps > 2) + [10 + steps]
    assert script.saved == [10 + steps]


@pytest.mark.parametrize(("seconds", "pauses"), [(None, 0), (10 * FAST - 0.001, 1)])
def test_a_loop_pauses_only_where_something_is_due(run, monkeypatch, seconds, pauses):
    marked, mark = [], JobMembership.marking_activity

    def marking(self, activity):
        marked.append(activity)
        return mark(self, activity)

    monkeypatch.setattr(JobMembership, "marking_activity", marking)
    flags = {} if seconds is None else {"max_seconds": seconds}
    run(Script([FAST]), lag=2, **flags)
    assert marked.count(ProcessActivity.PAUSE) == pauses


def test_the_first_limit_ends_the_timed_loop(run):
    record, _, _ = run(Script([FAST]), max_seconds=40 * FAST - FAST / 2)
    assert (record.ended_by, len(record.step_seconds)) == (None, 40)
    record, _, _ = run(Script([FAST]), max_seconds=39 * FAST - FAST / 2)
    assert (record.ended_by, len(record.step_seconds)) == ("max_seconds", 39)


def test_training_goes_on_while_metrics_are_computed_and_they_stay_in_order(run):
    # The second evaluation is ready before the first, which the third needs not wait for.
    script = Script([FAST], ready_at={35: [1], 40: [0]})
    record, _, out = run(
        script,
        num_batches=50,
        display_every=5,
        eval_during_training_at_specified_steps=(20, 30, 45),
    )
    assert [one.metrics for one in record.evaluations] == [{"map": 0.0}, {"map": 1.0}, {}, {}]
    assert [one.global_step for one in record.evaluations] == [20, 30, 45, 50]
    # What was known in the pause of an evaluation is the time of its end.
    assert all(one.wall_seconds > 0 for one in record.evaluations)
    shown = [line.split("\t")[0].split(" = ")[-1] for line in out.splitlines()]
    begin = shown.index("Running evaluation at global_step 30")
    after = shown[begin : shown.index("Running evaluation at global_step 45")]
    assert after == [
        "Running evaluation at global_step 30",
        *("Resuming training", "25", "30"),
        *("0.0000 [1 examples]", "1.0000 [1 examples]", "35"),
    ]


def test_a_loss_that_is_not_finite_ends_an_endless_warm_up(run):
    script = Script(SLOWING, losses={24: float("nan")})
    with pytest.raises(NonFiniteLossError) as caught:
        run(script, warmup="auto", max_warmup_batches=30)
    assert caught.value.step == 24 - 30
    assert script.loop == []
    record, _, _ = run(Script([FAST], losses={24: float("nan")}), allow_nonfinite=True)
    assert [step for step, loss in enumerate(record.losses) if loss != loss] == [24 - 10]


class Measuring(Script):
    """Each step tells metrics, which need not be in the order of the model."""

    def __call__(self, rate):
        return super().__call__(rate)._replace(metrics={"top_5": rate, "top_1": 0.5 * rate})


@pytest.mark.parametrize("shown", [False, True])
def test_observers_get_the_metrics_that_steps_compute(run, shown):
    every = Every(8)
    run(Measuring([FAST]), observers=[every], print_training_accuracy=shown)
    expected = {"top_1": 3.5, "top_5": 7.0} if shown else {}
    assert every.moments[0].metrics == expected


def test_updates_of_a_worker_have_the_rates_of_their_numbers(run):
    class Worker:
        inputs, rates = SimpleNamespace(wait_seconds=0.0), []

        def __call__(self, rate):
            self.rates.append(rate)
            return StepResult(1.0, {}, staleness=2)

    _, training, _ = run(
        Script([FAST]),
        workers={"worker:1": Worker()},
        global_step=5,
        num_warmup_batches=3,
        cross_replica_sync=False,
        variable_update="parameter_server",
        job_name="worker",
        worker_hosts="a:1,b:1",
        ps_hosts="c:1",
        steps=7,
    )
    assert Worker.rates == list(map(float, range(5, 15)))
    assert training.global_step == 15
    assert training._run.measurements.updates == [("worker:1", 2)] * 7


class SeveralSteps(Script):
    """Each execution has several steps."""

    def __call__(self, *rates):
        results = [super(SeveralSteps, self).__call__(rate) for rate in rates]
        return results[-1]._replace(loss=(np.array([result.loss[0] for result in results]),))


@pytest.mark.parametrize("at", [20, 22, 23])
def test_the_step_of_an_execution_whose_loss_is_not_finite_is_named(run, at):
    script = SeveralSteps([FAST], losses={at: float("nan")})
    with pytest.raises(NonFiniteLossError) as caught:
        run(script, num_warmup_batches=8, steps_per_execution=4)
    assert caught.value.step == at + 1 - 8
    assert script.rates == list(map(float, range(24)))


@pytest.mark.parametrize("warm_up", [0, 3])
@pytest.mark.parametrize(("at", "start", "blamed"), [(0, 0, False), (1, 0, True), (0, 5, True)])
def test_the_learning_rate_is_no_reason_before_the_first_update(run, warm_up, at, start, blamed):
    script = Script([FAST], losses={at: float("inf")})
    with pytest.raises(NonFiniteLossError) as caught:
        run(script, num_warmup_batches=warm_up, global_step=start)
    assert ("--init_learning_rate" in str(caught.value)) == blamed
    assert "--allow_nonfinite" in str(caught.value)


class InTurn:
    """Turns of so many steps, between which hours pass."""

    is_interleaved, seconds = True, 0.25

    def __init__(self, script, steps):
        self.script, self.steps = script, steps
        self.waits, self.last, self.within = [], 0, []

    def is_slice_over(self):
        return self.script.launched - self.last >= self.steps

    def wait_for_next_slice(self, *, steps_left=True):
        self.waits.append((self.script.launched, steps_left))
        self.last = self.script.launched
        self.script.now += 3600.0
        return 3600.0, 0.5

    @contextmanager
    def suspended(self):
        self.within.append(self.script.launched)
        yield


class Launched(Script):
    """Batches that a device works on for 8 ms after they have been launched for 6."""

    ready_at_seconds = 0.0

    def __call__(self, learning_rate):
        result = super().__call__(learning_rate)
        self.ready_at_seconds = max(self.ready_at_seconds, self.now) + 0.008
        return result

    def copy_result_to_host(self, result, events):
        self.now = max(self.now, self.ready_at_seconds)
        return super().copy_result_to_host(result, events)


def test_latency_is_measured_of_batches_launched_one_at_a_time(run):
    script = Launched([0.006])
    record, training, _ = run(script, lag=1, forward_only=True)
    assert record.latency_seconds == pytest.approx([0.014] * 40)
    assert len(record.step_seconds) == 40
    assert script.loop == [10, 50]  # the timed loop is over by then
    assert training.global_step == script.launched == 90


@pytest.mark.parametrize(
    ("lag", "forward_only", "steps", "measured"),
    [(1, True, 130, 100), (0, True, 40, 0), (1, False, 40, 0)],
)
def test_latency_is_measured_of_a_hundred_batches_at_most(run, lag, forward_only, steps, measured):
    record, _, _ = run(Launched([0.006]), lag=lag, forward_only=forward_only, steps=steps)
    assert (len(record.step_seconds), len(record.latency_seconds)) == (steps, measured)


@pytest.mark.parametrize("lag", [0, 1])
def test_waits_for_others_are_in_no_step(run, lag):
    script = Script([FAST])
    turns = InTurn(script, 15)
    record, _, _ = run(script, lag=lag, turns=turns)
    if not lag:  # the reading thread has a clock of its own
        assert record.step_seconds == pytest.approx([FAST] * 40)
    # After the warm-up, after the turns, and before what comes at the end; not within the warm-up.
    assert turns.waits == [(10, True), (25, True), (40, True), (50, False)]
    assert turns.within == [25, 40]
    assert record.turns == TurnTaking(
        turn_seconds=0.25, starts=(1, 16, 31), waited_seconds=7200.0, waited_cpu_seconds=1.0
    )
    assert RunRecord.from_json(record.to_json()).turns == record.turns


def test_the_time_of_a_loop_is_without_what_interrupts_it(run):
    script = Script([FAST])
    flags = {"eval_during_training_at_specified_steps": (30,)}
    record, _, _ = run(script, turns=InTurn(script, 15), **flags)
    measured = record.measured
    assert measured.loop_seconds == pytest.approx(40 * FAST)
    assert measured.loop_user_seconds == pytest.approx(1.5 * 40 * FAST)
    assert measured.loop_system_seconds == pytest.approx(0.5 * 40 * FAST)
    evaluation, _ = record.evaluations
    assert evaluation.loop_seconds == pytest.approx(20 * FAST)
    assert evaluation.wall_seconds == pytest.approx(20 * FAST + 3600.0)
    assert len(record.step_cpu_seconds) == 40
    assert RunRecord.from_json(record.to_json()).step_cpu_seconds == record.step_cpu_seconds


class Interrupted(Script):
    """An evaluation that is interrupted after a minute."""

    def run(self, *of):
        self.now += 60.0
        raise KeyboardInterrupt


def test_an_interrupted_evaluation_is_no_part_of_the_loop(run):
    record, _, _ = run(Interrupted([FAST]), eval_during_training_at_specified_steps=(30,))
    assert record.measured.loop_seconds == pytest.approx(20 * FAST)


def test_a_turn_that_is_over_with_the_last_step_is_not_passed_on_twice(run):
    record, _, _ = run(Script([FAST]))
    assert "turns" not in record.to_dict()  # of a run that is alone
    script = Script([FAST])
    turns = InTurn(script, 20)
    run(script, turns=turns)
    assert turns.waits == [(10, True), (30, True), (50, False)]
