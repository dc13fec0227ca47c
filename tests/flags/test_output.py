import os

import pytest

from cnnbench.errors import FlagError
from cnnbench.flags import Params, validate


def test_one_rhythm_of_checkpoints():
    validate(Params(save_model_secs=60))
    validate(Params(save_model_steps=10))
    with pytest.raises(FlagError, match="--save_model_secs") as caught:
        validate(Params(save_model_secs=60, save_model_steps=10))
    assert caught.value.flag == "save_model_steps"


def test_results_have_a_file_each():
    validate(Params(result_json="a", result_csv="b"))
    validate(Params(result_json="a"))
    validate(Params(result_csv="a"))


@pytest.mark.parametrize("other", ["a", "./a", "b/../a", os.path.abspath("a")])
def test_one_file_under_two_names(other):
    with pytest.raises(FlagError, match="--result_json") as caught:
        validate(Params(result_json="a", result_csv=other))
    assert caught.value.flag == "result_csv"


@pytest.mark.parametrize("weight", [-0.1, 1.1])
def test_moving_average_weight_is_a_share(weight):
    with pytest.raises(FlagError, match="from 0 to 1"):
        validate(Params(display_perf_ewma=weight))
