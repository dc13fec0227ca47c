import dataclasses

import pytest

from cnnbench.errors import FlagError
from cnnbench.flags import FLAGS, Params, validate


def test_defaults_are_valid():
    validate(Params())


def test_unknown_name_is_a_type_error():
    with pytest.raises(TypeError, match="batchsize"):
        Params(batchsize=3)


def test_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Params().num_gpus = 2


def test_values_take_one_form():
    params = Params(device="CPU", num_epochs=2, train_dir="", gpu_thread_mode="Global")
    assert params.device == "cpu"
    assert (params.num_epochs, type(params.num_epochs)) == (2.0, float)
    assert params.train_dir is None
    assert params.gpu_thread_mode == "global"
    assert Params(eval_during_training_at_specified_epochs=[1, 2.5]) == Params(
        eval_during_training_at_specified_epochs=(1.0, 2.5)
    )
    validate(params)


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"num_gpus": 0}, "num_gpus"),
        ({"num_gpus": "2"}, "num_gpus"),
        ({"num_gpus": True}, "num_gpus"),
        ({"batch_size": -1}, "batch_size"),
        ({"model": ["resnet50"]}, "model"),
        ({"model": None}, "model"),
        ({"device": "tpu"}, "device"),
        ({"display_perf_ewma": 1.5}, "display_perf_ewma"),
        ({"num_batches": 0}, "num_batches"),
        ({"weight_decay": float("nan")}, "weight_decay"),
        ({"variable_update": "horovod"}, "variable_update"),
        ({"cross_replica_sync": 2}, "cross_replica_sync"),
    ],
)
def test_validate_refuses(changes, flag):
    params = Params(**changes)
    with pytest.raises(FlagError) as caught:
        validate(params)
    assert caught.value.flag == flag


def test_replace():
    params = Params(model="resnet50", num_gpus=2)
    assert params.replace(num_gpus=4) == Params(model="resnet50", num_gpus=4)
    assert params.num_gpus == 2


def test_both_names_of_fp16():
    assert Params(use_fp16=True) == Params(precision="fp16")
    assert Params(use_fp16=True).precision == "fp16"
    assert Params(precision="fp16").use_fp16
    assert not Params(precision="bf16").use_fp16


@pytest.mark.parametrize(
    ("before", "changes", "after"),
    [
        ("fp16", {"precision": "bf16"}, "bf16"),
        ("fp16", {"use_fp16": False}, "fp32"),
        ("fp16", {"num_gpus": 2}, "fp16"),
        ("fp32", {"use_fp16": True}, "fp16"),
        ("bf16", {"use_fp16": False}, "bf16"),
        ("bf16", {"precision": "fp16"}, "fp16"),
    ],
)
def test_replace_takes_the_other_name_of_fp16_along(before, changes, after):
    params = Params(precision=before).replace(**changes)
    assert (params.precision, params.use_fp16) == (after, after == "fp16")
    validate(params)


def test_two_precisions_are_refused():
    with pytest.raises(FlagError, match="contradicts --precision=bf16"):
        validate(Params(precision="bf16", use_fp16=True))


def test_as_dict_has_every_flag_once():
    values = Params(model="lenet").as_dict()
    assert list(values) == [spec.name for spec in FLAGS]
    assert set(values) == {field.name for field in dataclasses.fields(Params)}
    assert Params.from_dict(values) == Params(model="lenet")
