"""What a run does before it trains."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cnnbench.errors import BenchmarkError
from cnnbench.run.driver import restore
from cnnbench.run.driver.checkpoints import RestoredState
from cnnbench.run.driver.restore import begin, broadcast_from_chief, resume_input
from cnnbench.run.driver.work import EvaluationWork, ForwardWork


@pytest.mark.parametrize(
    ("asynchronous", "together"),
    [(False, 4), (True, 12)],  # ten updates by three workers
)
def test_an_input_goes_on_behind_the_examples_of_earlier_runs(asynchronous, together):
    place = SimpleNamespace(asynchronous=asynchronous, job=SimpleNamespace(num_workers=3))
    plan = SimpleNamespace(length=SimpleNamespace(global_batch=4), place=place)
    asked: list[object] = []
    inputs = SimpleNamespace(resume=lambda *given: asked.append(given) or True)
    told: list[str] = []
    run = SimpleNamespace(plan=plan, messages=SimpleNamespace(notice=told.append))
    resume_input(run, inputs, 41, (3,))
    assert asked == [(41, together, (3,))]
    assert told == ["the input continues after the 41 examples trained on"]


def test_every_worker_gets_the_numbers_that_the_chief_has_restored():
    sent: list[bytes] = []

    def work(workers):
        manager = SimpleNamespace(
            workers=workers, savable_variables=dict, broadcast_from_chief=list
        )
        others = dict.fromkeys(("devices", "checkpoints", "evaluator"))
        return EvaluationWork(manager=manager, exporters=(), folder="", **others)

    job = work(SimpleNamespace(gather_bytes=lambda own: sent.append(own) or sent))
    of_chief = [4, 32, 0, 3, 1]  # with the skipped records of two shards
    assert broadcast_from_chief(job, *of_chief) == of_chief
    assert broadcast_from_chief(job, 0, 0, 5) == of_chief
    assert broadcast_from_chief(work(None), 4) == [4]


class Start:
    """The start of a run of 50 steps; `events` are what it does, `told` what it says."""

    def __init__(self, monkeypatch, found=None, trains=True, synthetic=False, state=None, **of):
        self.events, self.told = [], []
        params = {"train_dir": None, "steps_per_execution": 1, "backbone_model_path": None}
        params |= {"staged_vars": False, "num_epochs": None}
        params |= {name: value for name, value in of.items() if name in params}
        length = SimpleNamespace(
            batches=50,
            global_batch=4,
            check_steps_left=lambda flags, done: self.events.append(("left", done)),
        )
        job = SimpleNamespace(
            is_chief=of.get("chief", True), num_towers=of.get("towers", 1), num_workers=1
        )
        plan = SimpleNamespace(
            params=SimpleNamespace(**params),
            work=SimpleNamespace(trains=trains),
            length=length,
            place=SimpleNamespace(
                asynchronous=False, job=job, mode=SimpleNamespace(in_sync=of.get("in_sync", True))
            ),
            exchange=SimpleNamespace(
                aggregation=SimpleNamespace(applies_gradients_late=of.get("late", False))
            ),
            network=SimpleNamespace(model=SimpleNamespace(backbone="resnet")),
        )
        plan.resumed = lambda step, examples: plan
        self.run = SimpleNamespace(
            plan=plan,
            console=SimpleNamespace(lines=lambda *lines: None),
            messages=SimpleNamespace(
                notice=lambda text: self.told.append(text),
                warning=lambda text, name: self.told.append((text, name)),
            ),
        )
        variables = {name: SimpleNamespace(primary=name) for name in ("resnet/w", "head/w")}
        manager = SimpleNamespace(
            workers=None,
            after_initialization=lambda: self.events.append("made"),
            after_restore=lambda: self.events.append("restored"),
            wait_for_assignments=self.events.append,
            savable_variables=lambda: variables,
        )
        inputs = SimpleNamespace(synthetic=synthetic, devices="devices", resume=self.resume)
        checkpoints = SimpleNamespace(restore=lambda path: state)
        monkeypatch.setattr(
            restore.checkpoints,
            "delete_incomplete_files",
            lambda folder: self.events.append(("deleted", folder)),
        )
        monkeypatch.setattr(restore.checkpoints, "find_latest_checkpoint", lambda folder: found)
        step = SimpleNamespace(resume=lambda number: self.events.append(("at", number)))
        parts = {"devices": None, "exporters": (), "checkpoints": checkpoints}
        work = ForwardWork(
            step=step, inputs=inputs, manager=manager, workers={"a": step, "b": step}, **parts
        )
        self.result = begin(self.run, work)

    def resume(self, examples, global_batch, passed_over):
        self.events.append(("input", examples, global_batch, [*passed_over]))
        return True


STATE = RestoredState(20, 81, ("a notice",), (0, 3))


def test_a_first_run_makes_its_variables(monkeypatch):
    start = Start(monkeypatch)
    assert start.result == (0, 50)
    assert start.events == ["made", *[("at", 0)] * 3, "devices"]
    start = Start(monkeypatch, train_dir="there")
    assert start.result == (0, 50)
    assert start.events == ["made", ("deleted", "there"), *[("at", 0)] * 3, "devices"]
    assert start.told == []


def test_a_resumed_training_makes_the_steps_that_are_left(monkeypatch):
    start = Start(monkeypatch, "there/ckpt-20", train_dir="there", state=STATE)
    assert start.result == (20, 30)
    assert start.events == [
        *("made", ("deleted", "there"), ("left", 20)),
        *[("at", 20)] * 3,
        *(("input", 81, 4, [0, 3]), "devices"),
    ]
    resumed, notice, goes_on = start.told
    assert "there/ckpt-20" in resumed
    assert notice == "a notice"
    assert "81" in goes_on


@pytest.mark.parametrize(
    ("done", "together", "steps", "notices"),
    [(49, 1, 1, 1), (50, 1, 0, 2), (60, 1, 0, 2), (40, 4, 12, 1), (49, 4, 4, 1)],
)
def test_the_steps_left_fill_whole_executions(done, together, steps, notices, monkeypatch):
    state = RestoredState(done, 0, ())
    start = Start(monkeypatch, "ckpt", train_dir="there", state=state, steps_per_execution=together)
    assert start.result == (done, steps)
    assert len(start.told) == notices
    assert not [event for event in start.events if event[0] == "input"]


def test_forward_passes_restore_and_make_all_their_steps(monkeypatch):
    state = STATE._replace(warning="w is NaN")
    start = Start(monkeypatch, "ckpt", train_dir="there", state=state, trains=False)
    assert start.result == (20, 50)
    assert start.events == ["made", *[("at", 20)] * 3, "devices"]
    assert start.told[1:] == ["a notice", ("w is NaN", "nonfinite")]


def test_synthetic_inputs_start_over(monkeypatch):
    start = Start(monkeypatch, "ckpt", train_dir="there", state=STATE, synthetic=True)
    assert start.result == (20, 30)
    assert not [event for event in start.events if event[0] == "input"]


@pytest.mark.parametrize(
    ("flags", "differs"),
    [
        ({}, 0),
        ({"in_sync": False}, 0),
        ({"towers": 2}, 0),
        ({"in_sync": False, "towers": 2}, 1),
        ({"staged_vars": True}, 1),
        ({"late": True, "staged_vars": True}, 2),
    ],
)
def test_what_no_checkpoint_has_is_told(flags, differs, monkeypatch):
    start = Start(monkeypatch, "ckpt", train_dir="there", state=STATE, synthetic=True, **flags)
    assert len(start.told) == 2 + differs


@pytest.mark.parametrize(
    ("flags", "restores"), [({}, True), ({"trains": False}, False), ({"chief": False}, False)]
)
def test_a_backbone_is_restored_by_the_chief_of_a_training(flags, restores, monkeypatch):
    events = []

    class Stored:
        def __init__(self, path, hint):
            assert path == "ckpt"

        def check_shapes(self, variables):
            events.append({*variables.values()})

        def assign_stored_values(self, variables):
            events.append(len(variables))

    monkeypatch.setattr(restore, "StoredCheckpoint", Stored)
    monkeypatch.setattr(restore, "reset_averages", lambda manager, slots: events.append(slots))
    start = Start(monkeypatch, "ckpt", backbone_model_path="backbone", **flags)
    assert start.result == (0, 50)
    assert events == [{"resnet/w"}, 1, {}] * restores
    assert ("restored" in start.events) == restores
    assert len(start.told) == restores


def test_a_backbone_without_a_checkpoint_is_an_error(monkeypatch):
    with pytest.raises(BenchmarkError, match="=backbone"):
        Start(monkeypatch, None, backbone_model_path="backbone")
