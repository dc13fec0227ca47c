import dataclasses
import inspect
import re
from pathlib import Path

import pytest

from cnnbench.errors import FlagError
from cnnbench.flags import FLAGS, Params, parse_args, validate
from cnnbench.flags.retired import OBSOLETE

MIGRATING = Path(__file__).parents[2] / "docs" / "migrating.md"


def test_defaults_are_valid():
    validate(Params())


def test_unknown_name_is_a_type_error():
    with pytest.raises(TypeError, match="batchsize"):
        Params(batchsize=3)


def test_obsolete_flags_change_nothing_and_warn_as_the_command_line_does():
    for spec in OBSOLETE:
        values = {"boolean": not spec.default, "integer": 3, "number": 1, "string": "FP16"}
        value = values[spec.kind]
        (notice,) = parse_args([f"--{spec.name}={value}"]).notices
        with pytest.warns(UserWarning, match="has no meaning in TensorFlow 2") as caught:
            params = Params(**{spec.name: value}, num_gpus=2)
        assert [str(one.message) for one in caught] == [notice]
        assert caught[0].filename == __file__
        assert params == Params(num_gpus=2)
        assert params == Params(**{spec.name: spec.default}, num_gpus=2)  # without a warning


def test_obsolete_flags_with_values_that_they_could_not_have():
    for name, value in (("trt_mode", "FP64"), ("gpu_memory_frac_for_testing", -1.0)):
        with pytest.raises(FlagError) as told:
            parse_args([f"--{name}={value}"])
        with pytest.raises(FlagError) as caught:
            Params(**{name: value})
        assert str(caught.value).startswith(f"--{name}=")
        assert (caught.value.flag, caught.value.reason) == (name, told.value.reason)
    with pytest.raises(FlagError, match="--single_l2_loss_op=1: must be true or false"):
        Params(single_l2_loss_op=1)


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        ("learning_rate", "init_learning_rate", 0.5),
        ("checkpoint_directory", "train_dir", "ckpt"),
        ("cache_data", "datasets_repeat_cached_sample", True),
    ],
)
def test_old_names(old, new, value):
    notice = f"--{old} is --{new} now"
    assert notice in parse_args([f"--{old}={value}"]).notices
    with pytest.warns(UserWarning, match=f"^{notice}$") as caught:
        params = Params(**{old: value})
    assert len(caught) == 1
    assert params == Params(**{new: value})
    assert params.replace(num_gpus=2) == Params(**{new: value}, num_gpus=2)
    with pytest.raises(FlagError, match=f"--{old}={value}: is --{new} now; give one of the two"):
        Params(**{old: value, new: value})


def test_the_signature_names_every_flag():
    assert list(inspect.signature(Params).parameters) == [
        f.name for f in dataclasses.fields(Params)
    ]


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


def test_text_is_read_as_on_the_command_line():
    given = {
        "eval_during_training_at_specified_steps": "1,2",
        **{"batch_size": "32", "weight_decay": "1e-3", "xla": "true", "train_dir": "32"},
    }
    assert Params(**given) == parse_args([f"--{n}={v}" for n, v in given.items()]).params
    with pytest.raises(FlagError, match="--batch_size=x: must be an integer"):
        Params(batch_size="x")


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"num_gpus": 0}, "num_gpus"),
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


def test_the_error_in_the_docs_is_the_one_of_the_command():
    (quoted,) = re.findall("`cnnbench: error: (--num_gpus=0: .*?)`", MIGRATING.read_text("utf-8"))
    with pytest.raises(FlagError, match=re.escape(quoted)):
        validate(Params(num_gpus=0))


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
