"""Batches, epochs, warm-up, evaluation points and aggregation.

Tests `cnnbench/plan/run_plan.py`, `cnnbench/plan/make.py`, `cnnbench/plan/network.py`,
`cnnbench/plan/length.py`, `cnnbench/plan/setup.py` and `cnnbench/plan/identity.py`.
"""

import dataclasses

import pytest

from cnnbench.base import plugins
from cnnbench.errors import FlagError
from cnnbench.flags import FLAGS, Params
from cnnbench.flags.declare import RunPart, names_of_flags
from cnnbench.plan import check_flags, make_plan, parse_run
from cnnbench.plan.length import RunLength, WarmUpLength, count_evaluated_examples
from cnnbench.plan.network import model_gradients
from cnnbench.plan.run_plan import without_outputs
from cnnbench.variable_mgr.all_reduce import parse_all_reduce_spec
from cnnbench.variable_mgr.packing import AggregationSpec


@pytest.mark.parametrize(
    ("flags", "batch", "batches"),
    [
        ({}, 4, 100),
        ({"num_batches": 7}, 4, 7),
        ({"num_epochs": 3.0}, 32, 4688),  # of 50,000 images each, the last batch filled up
        ({"num_epochs": 1.0}, 50, 1000),
        ({"num_epochs": 0.5}, 32, 782),
        ({"num_epochs": 0.00001}, 32, 1),
    ],
)
def test_batches_and_epochs(flags, batch, batches):
    plan = make_plan(Params(model="trivial", data_name="cifar10", batch_size=batch, **flags))
    assert plan.length.batches == batches
    assert plan.length.epochs == pytest.approx(batches * batch / 50_000)
    assert plan.length.training_steps == 10 + batches  # the steps of the warm-up train, too


WORKERS = {"job_name": "worker", "worker_hosts": "a:1,b:1"}
ONE_LAYER = """
import os
from cnnbench.models import LearningRateSpec, Model, register_model

class OneLayer(Model):
    name, dataset, image_size, batch_size = "one_layer", "cifar10", 32, int(os.environ["BATCH"])
    learning_rate = LearningRateSpec(float(os.environ["RATE"]))

    def build(self, net, images):
        x = net.conv(images, int(os.environ["WIDTH"]), 3, int(os.environ["STRIDE"]))
        return net.logits(net.global_avg_pool(net.max_pool(x, 2, 2)))

register_model("one_layer", "cifar10", OneLayer)
"""


@pytest.mark.usefixtures("own_registry")
def test_workers_agree_on_plug_ins_and_on_all_that_follows_from_them(tmp_path, monkeypatch):
    """Each worker builds its own step: with another one the job would train a mixture."""
    params = Params(
        **{"variable_update": "collective_all_reduce", "model": "one_layer"},
        **{"data_name": "cifar10", "plugin": "plug.py", **WORKERS},
    )

    def facts(source=ONE_LAYER, folder="one", **changes):
        for name, value in {"BATCH": "4", "RATE": "1", "WIDTH": "2", "STRIDE": "1"}.items():
            monkeypatch.setenv(name, changes.get(name, value))
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "plug.py").write_text(source)
        monkeypatch.chdir(tmp_path / folder)
        for file in set(plugins._files):
            plugins.forget_plugin(file)
        return make_plan(params).job_facts_to_agree_on

    def differing(**of):
        one, other = facts(), facts(folder="two", **of)
        assert one.keys() == other.keys()
        return {name for name in one if one[name] != other[name]}

    source = "SHA-256 of --plugin=plug.py"
    variables, settings = (f"digest of the model's {part}" for part in ("variables", "settings"))
    assert differing() == set()
    assert differing(source=ONE_LAYER.replace("max_pool", "avg_pool")) == {source}
    assert differing(WIDTH="3") == {variables, settings}
    assert differing(STRIDE="2") == differing(RATE="2") == {settings}
    assert differing(BATCH="8") == {"--batch_size", "--eval_batch_size", "--num_epochs"}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, WarmUpLength(10, 10)),
        ({"num_warmup_batches": 3}, WarmUpLength(3, 3)),
        ({"num_warmup_batches": 0}, WarmUpLength(0, 0)),
        ({"autotune_threshold": 1}, WarmUpLength(10, 10)),
        ({"autotune_threshold": 3}, WarmUpLength(45, 45)),
        ({"autotune_threshold": 9999, "num_warmup_batches": 5}, WarmUpLength(5, 5)),
        ({"warmup": "auto"}, WarmUpLength(10, 200, auto=True)),
        ({"warmup": "auto", "num_warmup_batches": 50}, WarmUpLength(50, 200, auto=True)),
        ({"warmup": "auto", "max_warmup_batches": 30}, WarmUpLength(10, 30, auto=True)),
        ({"warmup": "auto", "autotune_threshold": 3}, WarmUpLength(45, 200, auto=True)),
        ({"warmup": "auto", "eval": True, "train_dir": "d"}, WarmUpLength(0, 0)),
    ],
)
def test_warm_up(flags, expected):
    assert make_plan(Params(model="lenet", **flags)).length.warm_up == expected


@pytest.mark.parametrize(
    ("model", "stop_at", "metric", "lower_is_better"),
    [
        ("resnet50", "loss:2.5", "loss", True),
        ("resnet50", "top_1:0.7", "top_1", False),
        *(("lenet", f"{name}:0.5", "top_5", False) for name in ("TOP_5", "top_5_accuracy")),
        ("ncf", "hit_rate_10:0.6", "hit_rate_10", False),
        ("deepspeech2", "word_error_rate:0.2", "word_error_rate", True),
    ],
)
def test_targets(model, stop_at, metric, lower_is_better):
    params = Params(model=model, stop_at=stop_at, eval_during_training_every_n_steps=5)
    target = check_flags(params).length.target
    assert (target.metric, target.lower_is_better) == (metric, lower_is_better)
    assert target.value == float(stop_at.partition(":")[2])


def test_blocks_are_recomputed_only_by_a_training():
    training = make_plan(Params(model="resnet50", recompute="blocks"))
    assert training.recomputed_flops == training.network.spec.recomputed_flops_per_image
    assert training.recomputed_flops
    for flags in ({}, {"recompute": "blocks", "forward_only": True}):
        assert make_plan(Params(model="resnet50", **flags)).recomputed_flops is None


@pytest.mark.parametrize(
    ("distribution", "reads", "by_strategy"),
    [("strategy", True, True), ("strategy", False, False), ("towers", True, False)],
)
def test_a_strategy_distributes_only_input_that_is_read(
    small_set, distribution, reads, by_strategy
):
    flags = {"variable_update": "mirrored_strategy", "num_gpus": 2, "batch_size": 2}
    flags |= {"input_distribution": distribution, "model": "resnet20", "data_name": "cifar10"}
    plan = make_plan(Params(**flags, data_dir=str(small_set("cifar10")) if reads else None))
    assert plan.distributes_by_strategy == by_strategy


@pytest.mark.parametrize(
    ("flags", "steps"),
    [
        ({"eval_during_training_every_n_steps": 3}, {3, 6, 9}),
        ({"eval_during_training_every_n_steps": 5}, {5}),  # 10 is the final evaluation
        ({"eval_during_training_at_specified_steps": (2, 9, 10, 11)}, {2, 9}),
        # An epoch of CIFAR-10 is 50000 images: 50 steps of 1000, so 0.05 is 2.5 steps.
        ({"eval_during_training_every_n_epochs": 0.05}, {3, 5, 8}),
        ({"eval_during_training_at_specified_epochs": (0.02, 0.15)}, {1, 8}),
    ],
)
def test_evaluation_points(flags, steps):
    plan = make_plan(
        Params(model="resnet20", data_name="cifar10", batch_size=1000, num_batches=10, **flags)
    )
    assert plan.length.eval_steps == steps
    assert plan.work.value == "training + evaluation"
    assert plan.length.eval_batches == 10


def test_a_global_batch_is_shared_by_the_devices_of_an_update():
    length = make_plan(Params(model="lenet", num_gpus=3, global_batch_size=12)).length
    assert (length.batch_per_device, length.global_batch) == (4, 12)
    with pytest.raises(FlagError, match=r"=16: must be a multiple of the 3 devices .* 15 or 18$"):
        make_plan(Params(model="lenet", num_gpus=3, global_batch_size=16))
    with pytest.raises(FlagError, match=r"=2: must be a multiple of the 3 devices .* such as 3$"):
        make_plan(Params(model="lenet", num_gpus=3, global_batch_size=2))
    with pytest.raises(FlagError, match=r"=9: must be .* 3 devices .* times 2 passes, .* 6 or 12$"):
        make_plan(Params(num_gpus=3, global_batch_size=9, gradient_accumulation_steps=2))
    length = make_plan(Params(num_gpus=3, batch_size=4, gradient_accumulation_steps=2)).length
    assert (length.batch_per_device, length.global_batch) == (4, 24)
    one, other = (
        make_plan(Params(model="lenet", num_gpus=3, **flags)).identity
        for flags in ({"batch_size": 4}, {"global_batch_size": 12})
    )
    assert one == other


def test_sizes_of_images_and_outputs_change_the_network():
    plan = make_plan(Params(model="lenet", image_size=32, num_classes=10))
    assert plan.network.spec.input_shape == "32x32x3"
    assert plan.network.spec.num_classes == plan.input.training.num_classes == 10
    assert plan.input.training.image_size == 32
    # Both convolutions, then 8 x 8 x 64 values to 512 units and 10 outputs.
    of_convolutions = 2 * 25 * (32 * 32 * 3 * 32 + 16 * 16 * 32 * 64)
    assert plan.network.spec.forward_flops_per_image == (
        of_convolutions + 2 * (8 * 8 * 64 * 512 + 512 * 10)
    )
    own = make_plan(Params(model="lenet", image_size=28, num_classes=1001))
    assert own.identity == make_plan(Params(model="lenet")).identity != plan.identity


def test_the_evaluation_is_as_long_as_the_training_unless_told():
    def batches(**flags):
        plan = make_plan(Params(eval_during_training_every_n_steps=1, **flags))
        return plan.length.eval_batches

    assert batches() == 100
    assert batches(num_batches=7) == 7
    assert batches(num_batches=7, num_eval_batches=2) == 2
    assert batches(batch_size=1000, num_eval_epochs=1.0) == 50


@pytest.mark.parametrize(
    ("epochs", "batches"),
    # 40 batches of 2 x 128 for a pass over 10,000 images, of which the last is filled up.
    [(0.00001, 1), (0.5, 20), (1, 40), (2, 80), (25.6, 1024)],
)
def test_passes_of_an_evaluation_are_whole_batches_each(epochs, batches):
    small = {"model": "resnet20", "data_name": "cifar10", "batch_size": 128, "num_gpus": 2}
    during = {"eval_during_training_every_n_steps": 1, "num_batches": 2}
    own = make_plan(Params(**small, **during, num_eval_epochs=epochs))
    assert own.length.eval_batches == batches
    as_training = make_plan(Params(**small, eval=True, train_dir="d", num_epochs=epochs))
    assert as_training.length.eval_batches == as_training.length.batches == batches


@pytest.mark.parametrize(
    ("batches", "batch", "examples", "shards", "counted"),
    [
        *((7, 8, 53, 1, 53), (6, 8, 53, 1, 48), (14, 8, 53, 1, 106), (8, 8, 53, 1, 61)),
        *((1, 64, 53, 1, 53), (3, 64, 53, 1, 159)),
        # Two workers have 27 and 26 examples, in seven batches of four each.
        *((7, 8, 53, 2, 53), (6, 8, 53, 2, 48), (8, 8, 53, 2, 61)),
        # Three and two examples, in batches of two each.
        *((2, 4, 5, 2, 5), (1, 4, 5, 2, 4), (3, 4, 5, 2, 9)),
    ],
)
def test_padding_is_no_example(batches, batch, examples, shards, counted):
    assert count_evaluated_examples(batches, batch, examples, shards) == counted


EVAL = {"eval": True, "train_dir": "d"}
AGAIN = {**EVAL, "eval_interval_secs": 9}
DURING = {"train_dir": "d", "eval_during_training_every_n_steps": 1}
ALL = ("top_1", "top_5")
SMALL = {"model": "resnet20", "data_name": "cifar10", "batch_size": 10, "num_gpus": 2}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, {}),
        ({"batch_size": 0}, {"batch_per_device": 128, "global_batch": 256, "epochs": 0.512}),
        (
            {"gradient_accumulation_steps": 2, "num_batches": 7, "num_gpus": 3},
            {"global_batch": 60, "batches": 7, "epochs": 7 * 60 / 50_000},
        ),
        (
            {
                **{"gradient_accumulation_steps": 2, "num_batches": 7, "eval_batch_size": 5},
                "eval_during_training_every_n_steps": 3,
            },
            {
                **{"global_batch": 40, "eval_batch_per_device": 5, "batches": 7},
                **{"epochs": 7 * 40 / 50_000, "eval_batches": 7, "eval_examples": 70},
                "eval_steps": {3, 6},
            },
        ),
        (
            {"eval": True, "train_dir": "d", "eval_batch_size": 5, "num_batches": 7},
            {
                **{"batch_per_device": 5, "eval_batch_per_device": 5, "global_batch": 10},
                **{"batches": 7, "epochs": 7 * 10 / 10_000, "warm_up": WarmUpLength(0, 0)},
                **{"train_examples": 0, "eval_batches": 7, "eval_examples": 70},
            },
        ),
        (
            {"steps_per_execution": 4, "num_batches": 10, "num_warmup_batches": 5},
            {
                **{"batches": 12, "epochs": 12 * 20 / 50_000},
                "warm_up": WarmUpLength(8, 8, together=4),
            },
        ),
        ({"steps_per_execution": 5}, {"warm_up": WarmUpLength(10, 10, together=5)}),
    ],
)
def test_lengths(flags, expected):
    length = make_plan(Params(**{**SMALL, **flags})).length
    usual = {
        **{"batch_per_device": 10, "global_batch": 20, "eval_batch_per_device": 10},
        **{"batches": 100, "epochs": 100 * 20 / 50_000, "warm_up": WarmUpLength(10, 10)},
        **{"train_examples": 50_000, "eval_batches": 0, "eval_examples": 0, "target": None},
    }
    if flags.get("batch_size") == 0:
        usual["eval_batch_per_device"] = 128
    assert length == RunLength(**{**usual, "eval_steps": set(), **expected})


EVERY_STEPS = "eval_during_training_every_n_steps"
EVERY_EPOCHS = "eval_during_training_every_n_epochs"
TO_TOP_1 = {"model": "lenet", "data_name": None, EVERY_STEPS: 5}


@pytest.mark.parametrize(
    ("flag", "allowed", "refused", "others"),
    [
        (EVERY_STEPS, 2, 1, {"num_batches": 100_001}),
        ("num_batches", 100_000, 100_001, {EVERY_STEPS: 1}),
        # A step has 20 of 50,000 images.
        (EVERY_EPOCHS, 0.0004, 0.00039, {}),
        (EVERY_EPOCHS, 0.001, 0.0004, {"num_epochs": 40.5}),
        ("autotune_threshold", 141, 142, {}),
        ("max_warmup_batches", 30, 29, {"warmup": "auto", "num_warmup_batches": 30}),
        ("num_epochs", 858_993.0, 858_994.0, {}),
        ("stop_at", "top_1:1", "top_1:1.01", TO_TOP_1),
        ("stop_at", "top_5:0", "top_5:-0.01", TO_TOP_1),
        ("stop_at", "loss:75", "top_1:75", TO_TOP_1),
    ],
)
def test_limits_of_lengths(flag, allowed, refused, others):
    check = {**SMALL, **others}
    make_plan(Params(**{**check, flag: allowed}))
    with pytest.raises(FlagError) as caught:
        make_plan(Params(**{**check, flag: refused}))
    assert caught.value.flag in (flag, EVERY_STEPS)
    if flag == "num_epochs":
        assert "at most 858993," in caught.value.reason


def test_inputs_of_a_training_and_of_its_evaluations():
    flags = {"eval_batch_size": 5, "gradient_accumulation_steps": 3, "tf_random_seed": 7}
    params = Params(**SMALL, **flags, precision="bf16", mixup_alpha=0.5, **DURING)
    plan = make_plan(params)
    of_both = {"num_devices": 2, "image_size": 32, "channels": 3, "num_classes": 11, "seed": 7}
    of_both |= {"dtype": "bfloat16", "shard_files": False, "mixup_alpha": 0.5}
    of_both |= {"dataset": plan.network.dataset, "preprocess": None}
    for spec, own in (
        (plan.input.training, {"subset": "train", "batch_per_device": 10, "passes": 3}),
        (plan.input.validation, {"subset": "validation", "batch_per_device": 5, "passes": 1}),
    ):
        assert {name: getattr(spec, name) for name in (*of_both, *own)} == {**of_both, **own}
    forward = make_plan(Params(**SMALL, forward_only=True, mixup_alpha=0.5))
    assert forward.input.training.mixup_alpha == 0.0
    assert make_plan(Params(model="ncf")).input.training.image_size == 0


def test_files_are_sharded_for_training_alone(small_set):
    data = {"data_dir": str(small_set("cifar10")), **SMALL, "num_gpus": 1}
    mode = {"variable_update": "mirrored_strategy", "input_distribution": "strategy"}
    for policy, sharded in (("file", True), ("data", False)):
        plan = make_plan(Params(**data, **mode, auto_shard_policy=policy))
        assert plan.input.training.shard_files == sharded
        assert not plan.input.validation.shard_files


def test_sizes_that_are_those_of_the_model():
    for flags, own in (
        ({}, ()),
        ({"image_size": 28}, ("image_size",)),
        ({"image_size": 32}, ()),
        ({"image_size": 28, "num_classes": 1001}, ("image_size", "num_classes")),
        ({"num_classes": 10}, ()),
    ):
        assert make_plan(Params(model="lenet", **flags)).network.own_sizes == own


@pytest.mark.parametrize(
    ("flags", "flag"),
    [
        ({"model": "ncf", "num_classes": 5}, "num_classes"),
        ({"model": "ncf", "image_size": 5}, "image_size"),
        ({"model": "vgg16", "image_size": 1}, "image_size"),
    ],
)
def test_sizes_that_a_model_cannot_take_are_refused(flags, flag):
    with pytest.raises(FlagError) as caught:
        make_plan(Params(**flags))
    assert caught.value.flag == flag


def test_an_auxiliary_head_is_built_if_asked_for():
    plain, with_head = (
        make_plan(Params(model="inception3", aux_head=aux)).network for aux in (False, True)
    )
    assert (plain.model.aux_head, with_head.model.aux_head) == (False, True)
    assert with_head.spec.parameters > plain.spec.parameters
    assert plain.preprocess(training=True) is None


def test_gradients_of_a_model():
    shapes = model_gradients("resnet20", None)
    assert shapes[0] == (3, 3, 3, 16)
    assert shapes[-2:] == ((64, 11), (11,))
    with pytest.raises(FlagError, match=r"^--model=resnet21"):
        model_gradients("resnet21", None)


@pytest.mark.parametrize(
    ("flags", "counted"),
    [
        # 22 images: each of two workers reads 11 of them in batches of 5.
        ({"variable_update": "collective_all_reduce", "num_eval_batches": 2}, 20),
        ({"variable_update": "collective_all_reduce", "num_eval_batches": 3}, 22),
        ({"variable_update": "collective_all_reduce", "num_eval_batches": 4}, 32),
        # Workers that train on their own evaluate all images each.
        ({"ps_hosts": "c:1", "cross_replica_sync": False, "num_eval_batches": 4}, 20),
        ({"ps_hosts": "c:1", "cross_replica_sync": False, "num_eval_batches": 6}, 27),
    ],
)
def test_an_evaluation_of_files_counts_their_examples(small_set, flags, counted):
    params = Params(
        **{"model": "resnet20", "data_name": "cifar10", "data_dir": str(small_set("cifar10"))},
        **{"batch_size": 5, "eval_during_training_every_n_steps": 1, **WORKERS, **flags},
    )
    assert make_plan(params).length.eval_examples == counted


CHECKS = {20, 25, 30, 35, 40, 45, 50, 55, 60, 66, 72, 79, 86, 94, 103, 113, 124, 136, 149}


@pytest.mark.parametrize(
    ("length", "steps"),
    [
        (WarmUpLength(10, 200), set()),
        (WarmUpLength(10, 200, auto=True), {*CHECKS, 163, 179, 196, 200}),
        (WarmUpLength(10, 163, auto=True), {*CHECKS, 163}),
        (WarmUpLength(21, 27, auto=True), {21, 26, 27}),
        # Twice as many steps, two of which are timed together.
        (WarmUpLength(20, 2 * 163, auto=True, together=2), {2 * n for n in (*CHECKS, 163)}),
        (WarmUpLength(60, 68, auto=True, together=2), {60, 68}),
    ],
)
def test_a_warm_up_is_checked_at_growing_distances(length, steps):
    assert length.steadiness_check_steps == steps


def test_a_checkpoint_may_have_the_steps_of_the_training_and_its_warm_up():
    flags = Params(model="lenet", num_batches=7, num_warmup_batches=3, train_dir="d")
    length = make_plan(flags).length
    length.check_steps_left(flags, 10)
    with pytest.raises(FlagError, match=r"^--num_batches=7: .*--train_dir=d is at step 11"):
        length.check_steps_left(flags, 11)


DISTRIBUTED = {"variable_update": "distributed_all_reduce", "device": "cpu"}


@pytest.mark.parametrize(
    ("flags", "on_cpu", "on_gpu"),
    [
        ({"variable_update": "replicated"}, ("copy",), ("copy",)),
        ({"variable_update": "replicated", "num_gpus": 1}, (), ()),
        ({"variable_update": "replicated", "forward_only": True}, (), ()),
        ({**DISTRIBUTED, "all_reduce_spec": "copy:2048:pscpu"}, *2 * (("copy:2K", "pscpu"),)),
        ({"variable_update": "mirrored_strategy"}, ("ring",), ("nccl",)),
        *(
            ({"variable_update": "mirrored_strategy", "cross_device_ops": name}, *2 * ((name,),))
            for name in ("hierarchical_copy", "reduction_to_one_device")
        ),
        ({"variable_update": "central_storage_strategy"}, *2 * (("reduction_to_one_device",),)),
        ({"variable_update": "parameter_server"}, (), ()),
        ({"variable_update": "independent"}, (), ()),
    ],
)
def test_names_of_what_reduces_the_gradients(flags, on_cpu, on_gpu):
    plan = check_flags(Params(**{"num_gpus": 2, **flags}))
    assert plan.reduction_names(on_gpu=False) == on_cpu
    assert plan.reduction_names(on_gpu=True) == on_gpu


@pytest.mark.parametrize(
    ("flags", "step_metrics", "metrics_in_child", "saves", "summarizes"),
    [
        ({}, (), False, None, False),
        ({"print_training_accuracy": True}, ALL, False, None, False),
        ({"forward_only": True, "train_dir": "d"}, ALL, False, None, False),
        ({"train_dir": "d", "summary_verbosity": 1}, (), False, "d", False),
        ({**DURING, "collect_eval_results_async": True}, (), True, "d", False),
        ({**DURING, "summary_verbosity": 1}, (), False, "d", True),
        ({**EVAL, "collect_eval_results_async": True}, (), False, None, False),
        ({**AGAIN, "collect_eval_results_async": True}, (), True, None, False),
        ({**AGAIN, "summary_verbosity": 1}, (), False, None, True),
    ],
)
def test_what_a_run_computes_and_writes(flags, step_metrics, metrics_in_child, saves, summarizes):
    plan = check_flags(Params(model="lenet", **flags))
    assert plan.step_metrics == step_metrics
    assert plan.metrics_in_child == metrics_in_child
    assert plan.checkpoint_save_folder == saves
    assert plan.summarizes_evaluations == summarizes


def test_only_an_evaluation_of_checkpoints_has_no_learning_rate():
    rates = [
        make_plan(Params(model="lenet", init_learning_rate=0.5, **flags)).rates.schedule(3)
        for flags in (EVAL, {}, DURING)
    ]
    assert rates == [0.0, 0.5, 0.5]


def test_a_record_has_resolved_values_in_place_of_flags_that_are_not_set():
    flags = {"model": "lenet", "num_gpus": 2, "global_batch_size": 8, "num_batches": 5}
    during = {"eval_during_training_every_n_steps": 1, "num_eval_batches": 3}
    params = Params(**flags, **during, precision="fp16", stop_at="top_5:0.5")
    resolved = {
        **{"data_name": "imagenet", "batch_size": 4, "global_batch_size": 0, "num_batches": 5},
        **{"eval_batch_size": 4, "num_epochs": 5 * 8 / 1281167, "num_eval_batches": 3},
        **{"num_warmup_batches": 10, "fp16_loss_scale": 128.0, "stop_at": "top_5:0.5"},
    }
    assert make_plan(params).config == {**params.as_dict(), **resolved}
    assert make_plan(params).to_json()["plugin"] == []
    config = make_plan(params.replace(stop_at=None, stop_at_top_1_accuracy=0.5)).config
    assert (config["stop_at"], config["stop_at_top_1_accuracy"]) == (None, 0.5)
    config = make_plan(params.replace(stop_at="top_1:0.5")).config
    assert (config["stop_at"], config["stop_at_top_1_accuracy"]) == (None, 0.5)
    assert make_plan(Params(**flags)).config["num_eval_batches"] is None


@pytest.mark.parametrize("flags", [{}, {"num_batches": 5}, {"weight_decay": 0.5}])
def test_a_header_names_the_flags_only_if_one_of_them_changes_the_speed(flags):
    shown = {"model": "lenet", **flags}
    for changes, named in (({"xla": True}, True), ({"result_json": "x"}, False), ({}, False)):
        plan = make_plan(Params(**shown, **changes))
        config = plan.to_json()
        named_flags = plan.header_flags(config)
        assert named_flags == (plan.changed_flags(config) if named else {})
        assert shown.items() <= plan.changed_flags(config).items()
        assert plan.changed_flags(config).get("xla", False) == named


def test_what_one_process_writes_the_other_processes_do_not():
    plan = make_plan(Params(model="lenet", result_json="x", trace_file="y", num_batches=5))
    silent = without_outputs(plan)
    assert silent.params == Params(model="lenet", num_batches=5)
    assert silent.network is plan.network


# Flag and value, and the field that they set, alone. Values are none of the defaults.
AGGREGATION = [
    ("all_reduce_spec", "copy:2K:xring", "all_reduce", parse_all_reduce_spec("copy:2K:xring")),
    ("all_reduce_group_size", 3, "group_size", 3),
    ("all_reduce_share_memory", False, "share_memory", False),
    ("hierarchical_copy", True, "all_reduce", parse_all_reduce_spec("hierarchical_copy")),
    ("communication_hint", "ring", "communication_hint", "ring"),
    ("network_topology", "gcp_v100", "network_topology", "gcp_v100"),
    ("gradient_repacking", 5, "gradient_repacking", 5),
    ("gradient_bucket_bytes", 9, "gradient_bucket_bytes", 9),
    ("precision", "bf16", "compact_dtype", "bfloat16"),
    ("precision", "fp16", "compact_dtype", "float16"),
    ("agg_small_grads_max_bytes", 77, "agg_small_grads_max_bytes", 77),
    ("agg_small_grads_max_group", 7, "agg_small_grads_max_group", 7),
    ("allreduce_merge_scope", 4, "allreduce_merge_scope", 4),
    ("variable_consistency", "relaxed", "variable_consistency", "relaxed"),
    ("sparse_to_dense_grads", True, "sparse_to_dense", True),
    ("gpus_per_card", 2, "shared_cards", True),
]


@pytest.mark.parametrize(("flag", "value", "field", "expected"), AGGREGATION)
def test_an_aggregation_flag_sets_its_field(flag, value, field, expected):
    assert expected != getattr(AggregationSpec(), field)
    plan = make_plan(Params.from_dict({flag: value}))
    assert plan.exchange.aggregation == dataclasses.replace(AggregationSpec(), **{field: expected})
    assert plan.exchange.cross_device.shared_cards == (field == "shared_cards")


def test_without_flags_nothing_is_done_to_gradients():
    assert make_plan(Params()).exchange.aggregation == AggregationSpec()
    for precision in ("fp16", "bf16"):
        wide = Params(precision=precision, compact_gradient_transfer=False)
        assert make_plan(wide).exchange.aggregation == AggregationSpec()


def test_collectives_between_processes_send_buckets_unless_told_otherwise():
    def buckets(**flags):
        params = Params(variable_update="collective_all_reduce", **flags)
        return make_plan(params).exchange.aggregation.gradient_bucket_bytes

    assert buckets() == 4 * 2**20
    assert buckets(gradient_bucket_bytes=0) == 0
    assert buckets(gradient_repacking=2) == buckets(agg_small_grads_max_bytes=64) == 0
    plan = make_plan(Params(variable_update="collective_all_reduce"))
    assert plan.exchange.aggregation.all_reduce == parse_all_reduce_spec("collective")


def test_every_aggregation_flag_and_field_has_been_tried():
    aggregating = {*names_of_flags(FLAGS, RunPart.AGGREGATION)}
    tried = {flag for flag, *_ in AGGREGATION} - {"precision", "gpus_per_card"}
    missing = aggregating - {"compact_gradient_transfer"} - tried
    assert not missing, (
        f"tests/plan/test_run_plan.py: AGGREGATION needs a row for each of {missing}"
    )
    assert tried <= aggregating
    fields = {field.name for field in dataclasses.fields(AggregationSpec)}
    assert {field for _, _, field, _ in AGGREGATION} == fields


def test_an_old_line_evaluates_ssd300_with_a_flag_for_training_alone():
    line = ["--model=ssd300", "--eval", "--train_dir=d", "--print_training_accuracy=True"]
    parsed = parse_run(line)
    assert any("--print_training_accuracy" in notice for notice in parsed.notices)
    assert make_plan(parsed.params).work.value == "evaluation"
    with pytest.raises(FlagError, match="ssd300 has no top-1 accuracy"):
        make_plan(parse_run([line[0], line[3]]).params)
