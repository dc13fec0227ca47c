"""The kinds of work of a run, and what each kind contains.

Tests cnnbench/run/driver/build.py.
"""

from types import SimpleNamespace

import pytest
from data_sets import write_random_cifar10
from short_runs import TINY

from cnnbench import BenchmarkCNN, Params
from cnnbench.run.driver.work import (
    EvaluatedTrainingWork,
    EvaluationWork,
    ForwardWork,
    InputWork,
    LoopWork,
    TrainingWork,
)

pytestmark = pytest.mark.usefixtures("quick_start")

EVALUATED = {"eval_during_training_every_n_steps": 2, "num_eval_batches": 1}


@pytest.mark.parametrize(
    ("flags", "kind", "trains_with"),
    [
        ({}, TrainingWork, [True]),
        (EVALUATED, EvaluatedTrainingWork, [True, False]),
        ({"forward_only": True}, ForwardWork, [True]),
        ({"eval": True, "train_dir": "FOLDER"}, EvaluationWork, [False]),
        ({"input_only": True, "data_dir": "FOLDER"}, InputWork, [True]),
    ],
)
def test_flags_choose_the_work_and_its_inputs(flags, kind, trains_with, tmp_path):
    write_random_cifar10(tmp_path, train=8, test=4)
    given = {name: str(tmp_path) if value == "FOLDER" else value for name, value in flags.items()}
    work = BenchmarkCNN(Params.from_dict({**TINY, **given})).build()
    assert type(work) is kind
    assert [source.spec.training for source in work.sources] == trains_with
    if isinstance(work, LoopWork):
        # Only updates of the variables can make a loss infinite that a user could avoid.
        assert work.loss_advice(updated=False) == ""
        assert bool(work.loss_advice(updated=True)) == isinstance(work, TrainingWork)
    work.close()


def test_exporters_are_those_that_flags_request(tmp_path):
    folder = str(tmp_path / "model")
    with_export = BenchmarkCNN(Params.from_dict({**TINY, "export_dir": folder})).build()
    assert [exporter.folder for exporter in with_export.exporters] == [folder]
    assert BenchmarkCNN(Params.from_dict(TINY)).build().exporters == ()


@pytest.mark.parametrize("forward", [False, True])
def test_sizes_of_a_step_are_recorded_with_those_of_its_variables(forward):
    flags = {**TINY, "num_gpus": 2, "variable_update": "replicated", "forward_only": forward}
    work, found = BenchmarkCNN(Params.from_dict(flags)).build(), {}
    measurements = SimpleNamespace(
        update_record=lambda part, **fields: found.update(
            {part: {**found.get(part, {}), **fields}}
        ),
        parts=SimpleNamespace(placement=None),
    )
    work.record_sizes(measurements)
    variables = len(work.manager.savable_variables())
    assert list(found) == ["placement"]  # no cluster
    assert found["placement"].pop("reduction_operations") == work.step.reduction_operations
    assert found["placement"] == {"variables": variables, "variable_copies": 2 * variables}
    restored = [variable.name for variable in work.restored_variables()]
    assert len(restored) == len({*restored}) >= variables


def test_the_workers_of_a_run_are_those_of_its_manager():
    others = dict.fromkeys(("devices", "checkpoints", "evaluator"))
    for workers in (None, object()):
        manager = SimpleNamespace(workers=workers)
        work = EvaluationWork(manager=manager, exporters=(), folder="", **others)
        assert work.worker_group is workers
