"""Parameters given from Python.

Tests cnnbench/flags/obsolete.py.
"""

import dataclasses
import inspect
import re
from pathlib import Path

import pytest
from golden import sentences
from registries import kept

from cnnbench.base import plugins
from cnnbench.errors import FlagError, UsageError
from cnnbench.flags import FLAGS, Params
from cnnbench.flags.groups.optimizer import PiecewiseSchedule
from cnnbench.flags.identity import changed_flags
from cnnbench.flags.parse import load_plugins, parse_args
from cnnbench.optimizers import OPTIMIZERS
from cnnbench.plan import check_flags, parse_run
from cnnbench.variable_mgr.all_reduce import parse_all_reduce_spec

GOLDEN = Path(__file__).parent / "golden" / "params.txt"
MIGRATING = Path(__file__).parents[2] / "docs" / "migrating.md"


def test_a_flag_is_changed_if_it_differs_from_its_default():
    params = Params(num_gpus=2, batch_size=0)
    assert (params.changed("num_gpus"), params.changed("batch_size")) == (True, False)


def test_a_field_is_a_flag_and_a_record_has_every_one():
    names = [field.name for field in dataclasses.fields(Params)]
    assert list(inspect.signature(Params).parameters) == names
    values = Params(model="lenet").as_dict()
    assert list(values) == [spec.name for spec in FLAGS]
    assert {*values, "constants"} == set(names)
    assert Params.from_dict(values) == Params(model="lenet")
    with pytest.raises(TypeError, match="batchsize"):
        Params(batchsize=3)


def test_values_take_one_form():
    params = Params(device="CPU", num_epochs=2, train_dir="", gpu_thread_mode="Global")
    assert (params.device, params.gpu_thread_mode) == ("cpu", "global")
    assert (params.num_epochs, type(params.num_epochs)) == (2.0, float)
    assert params.train_dir is None
    listed = Params(eval_during_training_at_specified_epochs=[1, 2.5])
    assert listed.eval_during_training_at_specified_epochs == (1.0, 2.5)
    check_flags(params)
    check_flags(Params())


def test_text_is_read_as_on_the_command_line():
    given = {
        "eval_during_training_at_specified_steps": "1,2, 3",
        **{"batch_size": "32", "weight_decay": "1e-3", "xla": "true", "train_dir": "32"},
    }
    assert Params(**given) == parse_run([f"--{n}={v}" for n, v in given.items()]).params
    with pytest.raises(FlagError, match="--batch_size=x: must be an integer"):
        Params(batch_size="x")


def test_parsed_values_are_recorded_as_they_were_written():
    texts = {"all_reduce_spec": "copy:2048:xring", "piecewise_learning_rate_schedule": "1; 3;.1"}
    params = Params.from_dict(texts)
    assert params.all_reduce_spec == parse_all_reduce_spec("copy:2K:xring")
    assert params.piecewise_learning_rate_schedule == PiecewiseSchedule((1.0, 0.1), (3,))
    assert {name: params.as_dict()[name] for name in texts} == texts
    assert parse_run([f"--{name}={text}" for name, text in texts.items()]).params == params
    with pytest.raises(FlagError, match="all_reduce_spec=xring:2: "):
        Params(all_reduce_spec="xring:2")


WRONG = [
    *({"num_gpus": 0}, {"num_gpus": 1025}, {"device": "tpu"}, {"adam_beta1": 1.0}),
    *({"all_reduce_spec": 3}, {"eval_during_training_at_specified_steps": (1, "2")}),
    {"use_fp16": True, "precision": "bf16"},
]
"""Values of each kind are in test_declare.py."""


def test_validate_refuses():
    told = {}
    for changes in WRONG:
        with pytest.raises(FlagError) as caught:
            check_flags(Params(**changes))
        assert caught.value.flag == next(iter(changes))
        told[str(changes)] = str(caught.value)
    sentences(GOLDEN, told, told)


def test_the_error_in_the_docs_is_the_one_of_the_command():
    (quoted,) = re.findall("`cnnbench: error: (--num_gpus=0: .*?)`", MIGRATING.read_text("utf-8"))
    with pytest.raises(FlagError, match=re.escape(quoted)):
        check_flags(Params(num_gpus=0))


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
    assert params == Params(precision=after, num_gpus=changes.get("num_gpus", 1))
    assert params.use_fp16 == (after == "fp16")
    check_flags(params)


def test_flags_that_a_record_changes():
    defaults = Params().as_dict()
    assert changed_flags(Params(num_gpus=2).as_dict(), defaults) == {"num_gpus": 2}
    assert changed_flags({"xla": 0, "batch_size": 0}, defaults) == {"xla": 0}  # not False
    assert changed_flags({"gone": 1, "away": None}) == {"gone": 1}


OPTIMIZER = """
from cnnbench.optimizers import Constant, OptimizerSpec, register_optimizer

def update(weight, gradient, rate, share):
    return (rate * gradient * share,)

register_optimizer(OptimizerSpec(
    name="own", formula="w -= lr share g", update=update,
    constants={"share": Constant("own_share", 1.0, "Share", minimum=0)},
))
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """The path of a plug-in that is not loaded yet: its optimizer adds --own_share."""
    (tmp_path / "own.py").write_text(OPTIMIZER)
    monkeypatch.setattr(plugins, "_files", {})
    with kept(OPTIMIZERS):
        yield str(tmp_path / "own.py")


def test_a_record_names_the_plug_in_whose_constants_it_has(plugin):
    values = {"plugin": (plugin,), "optimizer": "own", "own_share": "0.5"}
    params = Params.from_dict(values)
    assert params.constants == {"own_share": 0.5}
    assert Params.from_dict(params.as_dict()) == params


def test_constants_may_be_given_before_their_plug_in_is_loaded(plugin):
    params = Params(plugin=plugin, optimizer="own", constants={"own_share": 0.5})
    assert (params.constants, params.own_share) == ({"own_share": 0.5}, 0.5)
    assert Params(plugin=plugin, optimizer="own", constants={"own_share": 1.0}).constants == {}


def test_a_command_line_takes_the_flags_that_its_plug_in_adds(plugin):
    line = [f"--plugin={plugin}", "--optimizer=own"]
    with pytest.raises(UsageError, match="unknown flag --own_share"):
        parse_run(["--own_share=0.5"])
    parsed = parse_run(["--own_share=0.5", *line])
    assert parsed.params == Params(plugin=plugin, optimizer="own", constants={"own_share": 0.5})
    assert parsed.explicit_flags == ("plugin", "optimizer", "own_share")
    with pytest.raises(UsageError, match="unknown flag --own_shore; did you mean --own_share"):
        parse_run(["--own_shore=0.5", *line])


def test_a_caller_prepares_for_plug_ins_before_they_are_loaded(plugin):
    told = []

    def prepare(values):
        told.append((values, "own" in OPTIMIZERS))

    line = [f"--plugin={plugin}", "--optimizer=own", "--own_share=0.5"]
    values = {"optimizer": "own", "plugin": (plugin,)}
    parse_args(["--batch_size=3"], before_plugins=prepare)
    parse_args(["--batch_size=3", "--optimizer=sgd"], before_plugins=prepare)
    with pytest.raises(UsageError, match="unknown flag --own_share"):
        parse_args(["--own_share=0.5", "--optimizer=sgd"], before_plugins=prepare)
    assert told == []
    given = parse_args(line, before_plugins=prepare).given
    assert given == {**values, "own_share": 0.5}
    assert told == [(values, False)]


def test_the_plug_ins_of_a_command_line_are_loaded_whatever_else_it_says(plugin):
    load_plugins(["--zzz", "resnet50", f"--plugin={plugin}"])
    assert "own" in OPTIMIZERS
