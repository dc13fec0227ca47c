import itertools

import pytest

from cnnbench.errors import FlagError
from cnnbench.flags import Params, validate

DURING = {
    "eval_during_training_every_n_steps": 5,
    "eval_during_training_every_n_epochs": 0.5,
    "eval_during_training_at_specified_steps": (5, 9),
    "eval_during_training_at_specified_epochs": (0.5,),
}


@pytest.mark.parametrize(
    ("changes", "flag", "names"),
    [
        ({"eval": True}, "eval", "--train_dir"),
        ({"eval": True, "train_dir": "d", "forward_only": True}, "forward_only", "--eval"),
        ({"num_batches": 3, "num_epochs": 1.0}, "num_batches", "--num_epochs"),
        ({"num_eval_batches": 3, "num_eval_epochs": 1.0}, "num_eval_batches", "--num_eval_epochs"),
        ({"stop_at_top_1_accuracy": 0.7}, "stop_at_top_1_accuracy", "eval_during_training"),
        ({"stop_at_top_1_accuracy": 0.0}, "stop_at_top_1_accuracy", "eval_during_training"),
    ],
)
def test_impossible_pairs(changes, flag, names):
    with pytest.raises(FlagError, match=names) as caught:
        validate(Params(**changes))
    assert caught.value.flag == flag


@pytest.mark.parametrize("name", DURING)
def test_evaluation_during_training_wants_training(name):
    changes = {name: DURING[name]}
    validate(Params(**changes))
    validate(Params(**changes, stop_at_top_1_accuracy=0.7))
    with pytest.raises(FlagError, match="leave out --forward_only"):
        validate(Params(**changes, forward_only=True))
    with pytest.raises(FlagError, match="leave out --eval"):
        validate(Params(**changes, eval=True, train_dir="d"))


def test_one_rhythm_of_evaluation_during_training():
    names = list(DURING)
    for first, second in itertools.pairwise(names):
        with pytest.raises(FlagError, match=f"--{first}") as caught:
            validate(Params(**{first: DURING[first], second: DURING[second]}))
        assert caught.value.flag == second


@pytest.mark.parametrize(
    "changes",
    [
        {"eval": True, "train_dir": "d"},
        {"forward_only": True, "print_training_accuracy": True},
        {"num_batches": 3, "num_eval_epochs": 1.0},
        {"num_warmup_batches": 0},
    ],
)
def test_possible_pairs(changes):
    validate(Params(**changes))
