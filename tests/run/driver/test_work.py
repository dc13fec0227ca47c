"""The kinds of work of a run, and what each kind contains.

Tests cnnbench/run/driver/build.py.
"""

from dataclasses import replace
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

SCALED = {"precision": "fp16", "fp16_enable_auto_loss_scale": True}
EVALUATED = {"eval_during_training_every_n_steps": 2, "num_eval_batches": 1}


@pytest.mark.parametrize(
    ("flags", "kind", "trains_with"),
    [
        (SCALED, TrainingWork, [True]),
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
    if isinstance(work, ForwardWork):
        with_workers = replace(work, manager=SimpleNamespace(workers="those of a job"))
        assert with_workers.worker_group == "those of a job"
        restored = [variable.name for variable in work.restored_variables()]
        assert len(restored) == len({*restored}) >= len(work.manager.savable_variables())
        assert ({"scale", "good_steps"} <= {*restored}) == (flags == SCALED)
    work.close()
