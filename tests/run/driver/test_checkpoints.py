"""Checkpoints: every mode reads those of every other, and what does not fit is named.

Tests cnnbench/run/driver/stored_checkpoint.py.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf
from covering import covering_pairs, slow_if
from short_runs import NETWORKS, RATE, build, command

from cnnbench.optimizers import OPTIMIZERS
from cnnbench.run.driver.checkpoints import Checkpoints

pytestmark = pytest.mark.usefixtures("quick_start")

MODES: dict[str, dict[str, object]] = {
    "one": {"num_gpus": 1},
    "ps": {"num_gpus": 2},
    "staged": {"num_gpus": 2, "staged_vars": True},
    "replicated": {"num_gpus": 2, "variable_update": "replicated"},
    "packed": {
        "num_gpus": 2,
        "variable_update": "replicated",
        "gradient_repacking": 2,
        "variable_consistency": "relaxed",
    },
    "shadows": {"num_gpus": 2, "variable_update": "distributed_replicated"},
    "independent": {"num_gpus": 2, "variable_update": "independent"},
    "mirrored": {
        "num_gpus": 2,
        "variable_update": "mirrored_strategy",
        "cross_device_ops": "reduction_to_one_device",
    },
}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A run of each mode, three steps of Adam done; and its checkpoint."""

    @functools.cache
    def make(mode):
        folder = str(tmp_path_factory.mktemp(mode))
        made = build("poison", train_dir=folder, optimizer="adam", batch_size=2, **MODES[mode])
        for _ in range(3):
            made.step(RATE).loss.numpy()
        return made, made.checkpoints.save(folder, 3)

    return make


def state(made):
    return {**made.checkpoints._variables, **made.checkpoints.slots}


# Each mode reads the checkpoint of the one before it; all have the same names, so every pair works.
PAIRS = list(zip([*MODES][-1:] + [*MODES][:-1], MODES, strict=True))


@pytest.mark.parametrize(
    "pair",
    [
        pytest.param(pair, marks=[pytest.mark.slow] * (number != 3))
        for number, pair in enumerate(PAIRS)
    ],
    ids="-to-".join,
)
def test_every_mode_restores_what_another_saved(pair, built):
    (source, path), (target, _) = (built(mode) for mode in pair)
    expected = {name: v.primary.numpy() for name, v in state(source).items()}
    assert {"conv0/kernel/m", "conv0/kernel/v", "optimizer/beta1_power"} <= expected.keys()
    saved = {name: [c.numpy() for c in v.copies] for name, v in state(target).items()}
    for variable in state(target).values():
        variable.assign(tf.fill(variable.shape, -7.0))
    restored = target.checkpoints.restore(path)
    assert restored.global_step == 3
    assert state(target).keys() == expected.keys()
    for name, variable in state(target).items():
        for copy in variable.copies:
            np.testing.assert_array_equal(copy.numpy(), expected[name], err_msg=name)
    # As it was, for the next pair.
    for name, variable in state(target).items():
        for copy, value in zip(variable.copies, saved[name], strict=True):
            copy.assign(value)


@pytest.mark.parametrize("narrow", slow_if([False], [True, False]))
def test_variables_of_16_and_of_32_bits_read_each_others_checkpoints(narrow, saved, capsys):
    fp16 = ["--precision=fp16", "--fp16_vars"]
    steps = [f"--train_dir={saved}", "--quiet_conditions=all"]
    assert run("--num_batches=4", *steps, *(fp16 if narrow else [])) == 0
    assert "resuming" in capsys.readouterr().err
    stored = dict(tf.train.list_variables(str(saved / "model.ckpt-4")))
    assert run("--num_batches=6", *steps, *([] if narrow else fp16)) == 0
    assert "resuming" in capsys.readouterr().err
    reader = tf.train.load_checkpoint(str(saved / "model.ckpt-4"))
    dtypes = {reader.get_tensor(name).dtype.name for name in stored if name.startswith("model/")}
    assert dtypes == {"float16" if narrow else "float32"}


UNNAMED = ("sgd", "momentum", "rmsprop", "adam")
"""The optimizers of earlier versions, which wrote checkpoints without the name."""
EVERYDAY = ("momentum", "adam", "adamw")
"""Optimizers of the everyday suite, two of them with slots of the same names."""


@pytest.fixture(scope="module")
def optimized(tmp_path_factory):
    """A run with each optimizer, a step done; where its checkpoints are; the state they hold.

    Checkpoint 2 is one of `UNNAMED`.
    """

    @functools.cache
    def make(optimizer):
        folder = tmp_path_factory.mktemp(optimizer)
        made = build("oracle", optimizer=optimizer, train_dir=str(folder), num_gpus=2)
        made.step(RATE).loss.numpy()
        made.checkpoints.save(str(folder), 1)
        Checkpoints(made.manager, made.slots).save(str(folder), 2)
        state = {name: slot.primary.numpy() for name, slot in made.slots.items()}
        return made, str(folder / "model.ckpt"), state

    return make


@pytest.mark.parametrize(
    ("before", "now", "named"),
    slow_if(
        lambda case: not {*case[:2]} <= {*EVERYDAY},
        [
            *covering_pairs(UNNAMED, UNNAMED, [True, False]),
            *((name, name, True) for name in OPTIMIZERS if name not in UNNAMED),
            *(("adam", "adamw", named) for named in (True, False)),
            ("lars", "momentum", True),
        ],
    ),
)
def test_an_optimizer_takes_over_its_own_state_alone(before, now, named, optimized):
    _, path, state = optimized(before)
    target, _, _ = optimized(now)
    for slot in target.slots.values():
        slot.assign(tf.fill(slot.shape, -7.0))
    notices = target.checkpoints.restore(f"{path}-{1 if named else 2}").notices
    told = f"was written with --optimizer={before}; the state of {now} starts afresh"
    assert [notice.endswith(told) for notice in notices] == [True] * (before != now)
    for name, slot in target.slots.items():
        for copy in slot.copies:
            assert copy.numpy() == (state[name] if before == now else -7.0)


@pytest.mark.parametrize("name", slow_if(lambda name: name not in EVERYDAY, OPTIMIZERS))
def test_training_goes_on_exactly_as_it_would_have(name, optimized):
    made, path, _ = optimized(name)
    trained = []
    for _ in range(2):
        made.checkpoints.restore(f"{path}-1")
        for _ in range(3):
            made.step(RATE).loss.numpy()
        parts = (*made.manager.savable_variables().values(), *made.slots.values())
        trained.append([copy.numpy().tobytes() for part in parts for copy in part.copies])
    assert trained[0] == trained[1]


def test_an_evaluation_asks_for_no_optimizer(optimized):
    made, path, _ = optimized("momentum")
    for step in (1, 2):
        assert not Checkpoints(made.manager).restore(f"{path}-{step}").notices


def run(*flags):
    return command(*flags, num_batches=2, num_warmup_batches=0)


def test_a_restored_step_computes_with_the_restored_values(tmp_path):
    made = build("oracle", train_dir=str(tmp_path), num_gpus=2, staged_vars=True)
    path = made.checkpoints.save(str(tmp_path), 0)
    losses = [float(made.step(RATE).loss.numpy()) for _ in range(3)]
    assert losses[0] == losses[1] != losses[2]
    made.checkpoints.restore(path)
    assert [float(made.step(RATE).loss.numpy()) for _ in range(3)] == losses


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """What a run of two steps saves, by name of the file."""
    folder = tmp_path_factory.mktemp("saved")
    assert run(f"--train_dir={folder}", "--peak_flops=0") == 0
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def saved(files, tmp_path):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


INDEX, DATA = "model.ckpt-2.index", "model.ckpt-2.data-00000-of-00001"


def refusal(capsys, *flags):
    capsys.readouterr()
    assert run("--quiet_conditions=all", *flags) == 4
    errors = [line for line in capsys.readouterr().err.splitlines() if " error: " in line]
    (line,) = errors
    return line


@pytest.mark.parametrize(
    ("name", "damage"),
    slow_if(
        lambda case: "empty" in case.id or case.id == "data-half",
        [
            pytest.param(INDEX, lambda whole: b"", id="index-empty"),
            pytest.param(INDEX, lambda whole: whole[: len(whole) // 2], id="index-half"),
            pytest.param(DATA, lambda whole: b"", id="data-empty"),
            pytest.param(DATA, lambda whole: whole[: len(whole) // 2], id="data-half"),
            pytest.param(
                *(DATA, lambda whole: bytes([whole[0] ^ 255, *whole[1:]])), id="data-byte"
            ),
        ],
    ),
)
def test_a_damaged_checkpoint_is_named(name, damage, saved, capsys):
    (saved / name).write_bytes(damage((saved / name).read_bytes()))
    line = refusal(capsys, "--num_batches=9", f"--train_dir={saved}")
    if name == DATA:
        assert f"checkpoint {saved}/model.ckpt-2 cannot be read: " in line
    else:
        assert f"{saved} contains no complete checkpoint model.ckpt-*, but {DATA}" in line


def test_a_foreign_checkpoint_is_named(tmp_path, capsys):
    path = str(tmp_path / "model.ckpt-2")
    tf.train.Checkpoint(kernel=tf.Variable([1.0])).write(path)
    for mode in (["--eval", "--num_eval_batches=1"], ["--forward_only"]):
        line = refusal(capsys, *mode, f"--train_dir={path}")
        assert f"checkpoint {path} lacks 7 of 7 variables (first: affine0/kernel)" in line


def test_another_shape_is_named(saved, capsys):
    line = refusal(capsys, "--data_name=imagenet", "--num_batches=9", f"--train_dir={saved}")
    assert (
        "model.ckpt-2 contains affine0/kernel with the shape [3072, 1], not [154587, 1]; it was "
        "written for another --model or --data_name" in line
    )


PLUGIN = f"--plugin={NETWORKS}"


@pytest.fixture(scope="module")
def backbones(tmp_path_factory):
    """A folder with a checkpoint of the classifier and one of the wide classifier."""
    folder = tmp_path_factory.mktemp("backbones")
    for name in ("classifier", "wide"):
        words = [f"--model={name}", f"--train_dir={folder / name}", "--peak_flops=0"]
        assert run(PLUGIN, *words) == 0
    return folder


def test_a_backbone_starts_from_a_checkpoint_of_its_own(backbones, tmp_path, capsys):
    flags = [PLUGIN, "--model=detector", f"--train_dir={tmp_path}", "--init_learning_rate=0"]
    flags += ["--num_gpus=2", "--variable_update=independent", "--weight_decay=0"]
    assert run(*flags, f"--backbone_model_path={backbones / 'classifier'}") == 0
    assert "backbone of 7 variables restored from " in capsys.readouterr().err
    ours = tf.train.load_checkpoint(str(tmp_path))
    theirs = tf.train.load_checkpoint(str(backbones / "classifier"))
    end = "/.ATTRIBUTES/VARIABLE_VALUE"
    for name in ("conv0.Skernel", "batchnorm0.Sbeta", "conv1.Sbias"):
        expected = theirs.get_tensor(f"model/{name}{end}")
        np.testing.assert_array_equal(ours.get_tensor(f"model/trunk.S{name}{end}"), expected)
    # A checkpoint of the whole model takes precedence.
    assert run(*flags, "--num_batches=9", f"--backbone_model_path={backbones / 'wide'}") == 0
    assert "backbone of" not in capsys.readouterr().err


def test_a_checkpoint_without_the_layers_of_the_backbone_is_named(saved, backbones, capsys):
    flags = [PLUGIN, "--model=detector"]
    line = refusal(capsys, *flags, f"--backbone_model_path={saved}")
    assert f"{saved}/model.ckpt-2 lacks 7 of 7 variables (first: conv0/kernel); it is not" in line
    line = refusal(capsys, *flags, f"--backbone_model_path={backbones / 'wide'}/model.ckpt-2")
    assert "contains conv0/kernel with the shape [3, 3, 3, 5], not [3, 3, 3, 3]; it is not" in line


def test_examples_are_counted_over_runs_of_different_batches(built, tmp_path):
    """Batches of two, three and two examples, and a checkpoint without a number of examples."""
    made, _ = built("replicated")
    manager = made.manager
    first = Checkpoints(manager, global_batch=2).save(str(tmp_path / "a"), 10)
    second = Checkpoints(manager, global_batch=3)
    assert second.restore(first).examples == 20
    path = second.save(str(tmp_path / "b"), 14)
    third = Checkpoints(manager, global_batch=2)
    assert third.restore(path).examples == 20 + 12
    last = third.save(str(tmp_path / "c"), 15)
    assert Checkpoints(manager, global_batch=5).restore(last).examples == 34
    parts = {"model": {n: v.primary for n, v in manager.savable_variables().items()}}
    old = tf.train.Checkpoint(**parts, global_step=tf.Variable(4, dtype=tf.int64))
    assert third.restore(old.write(str(tmp_path / "old"))).examples == 8
