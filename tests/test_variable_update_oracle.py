"""Training against arithmetic done by hand in NumPy, in every mode.

helpers/oracle.py has the network and the arithmetic.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from covering import covering_pairs, everyday_values, slow_if
from oracle import LOCAL_SGD, LOCAL_SGD_PLUGIN, RULES, STEPS, expected_losses, slopes
from short_runs import EVERYDAY_MODES, NETWORKS, RATE, build
from worker_runs import run_in_process

from cnnbench import BenchmarkCNN, Params
from cnnbench.optimizers import OPTIMIZERS
from cnnbench.optimizers.clipping import CLIPPINGS
from cnnbench.variable_mgr import registry
from cnnbench.variable_mgr.modes import BUILT_IN, Processes, Reduction

pytestmark = pytest.mark.usefixtures("quick_start")


def record_of(**flags):
    own = {"model": "oracle", "plugin": NETWORKS, "device": "cpu", "num_batches": STEPS}
    own |= {"num_warmup_batches": 0, "init_learning_rate": RATE, "allow_nonfinite": True}
    if flags.get("variable_update") == "mirrored_strategy":
        # Its collectives could not run on other devices in another test.
        own["cross_device_ops"] = "reduction_to_one_device"
    if flags.get("variable_update") == LOCAL_SGD:
        own["plugin"] = f"{NETWORKS},{LOCAL_SGD_PLUGIN}"
    return BenchmarkCNN(Params.from_dict({**own, **flags})).run()


def run(**flags):
    return record_of(**flags).losses


def both(**flags):
    """The losses of a run, and those of the oracle."""
    passes = flags.get("gradient_accumulation_steps", 1)
    return run(**flags), expected_losses(slopes(flags["num_gpus"] * passes), flags)


def assert_like_the_oracle(losses, expected):
    scale = max(1.0, *map(abs, expected))
    np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-6 * scale)


# A parameter_server_strategy needs other processes, as test_coordinated.py has them.
OF_ONE_PROCESS = {one.name: one for one in BUILT_IN if one.processes is not Processes.COORDINATOR}
MODES = (*OF_ONE_PROCESS, LOCAL_SGD)
ONE_TOWER = ("one_device_strategy", "multi_worker_mirrored_strategy")


ALL_OPTIMIZERS = ("parameter_server", "replicated", "independent", "mirrored_strategy")
"""Modes that meet every optimizer: variables shared, copied, apart, and of a strategy."""


def fits(mode, devices, optimizer, *_):
    """Each mode has one tower and, if it can, a larger number, which is 8 of two optimizers only.

    Most modes meet one without slots and one with some.
    """
    if mode not in ALL_OPTIMIZERS and optimizer not in ("sgd", "adam"):
        return False
    larger = (2, 3, 8)[MODES.index(mode) % 3]
    if larger == 8 and optimizer not in ("sgd", "adam"):
        larger = 2
    return devices == 1 or (devices == larger and mode not in ONE_TOWER)


SEVERAL_TOWERS = (
    *("parameter_server", "replicated", "independent", "distributed_replicated"),
    *("mirrored_strategy", "central_storage_strategy", "collective_all_reduce", LOCAL_SGD),
)
COVER = covering_pairs(
    *(MODES, [1, 2, 3, 8], OPTIMIZERS, [0, 0.0625], ["mean", "sum"], ["gpu", "cpu"]), allowed=fits
)


def test_every_optimizer_meets_every_kind_of_manager():
    assert all(RULES[name] for name in OPTIMIZERS)
    met = {(mode, optimizer) for mode, _, optimizer, *_ in COVER}
    assert met >= {*itertools.product(ALL_OPTIMIZERS, OPTIMIZERS)}
    coordinated = {"parameter_server_strategy"}
    assert {mode for mode, *_ in COVER} == {*registry.names(), LOCAL_SGD} - coordinated


@pytest.mark.parametrize(
    ("mode", "devices", "optimizer", "decay", "reduction", "place"), everyday_values(COVER)
)
def test_losses_equal_the_oracle(mode, devices, optimizer, decay, reduction, place):
    losses, expected = both(
        **OF_ONE_PROCESS[mode].needs if mode in OF_ONE_PROCESS else {},
        model="oracle_of_matrices",
        num_gpus=devices,
        optimizer=optimizer,
        weight_decay=decay,
        gradient_reduction=reduction,
        variable_update=mode,
        local_parameter_device=place,
    )
    assert_like_the_oracle(losses, expected)


@pytest.mark.parametrize(
    ("devices", "flags"),
    slow_if(
        lambda case: case[1] != {"cross_device_ops": "auto"},
        [
            (2, {"cross_device_ops": "auto"}),
            (2, {"cross_device_ops": "ring", "bytes_per_pack": 4}),
            (4, {"cross_device_ops": "hierarchical_copy", "num_packs": 2}),
            (2, {"cross_device_ops": "hierarchical_copy", "num_packs": 0}),
        ],
    ),
)
def test_cross_device_operations_train_like_the_oracle(devices, flags):
    given = {"variable_update": "mirrored_strategy", "optimizer": "adam", "weight_decay": 0.0625}
    given |= {"gradient_reduction": "sum", "num_gpus": devices}
    np.testing.assert_allclose(*both(**{**given, **flags}), rtol=1e-5)


@pytest.mark.slow
def test_rings_of_more_devices_train_like_the_oracle(tmp_path):
    """In a process of their own: collectives over two sets of devices end each other."""
    common = {"model": "oracle", "plugin": NETWORKS, "device": "cpu", "num_batches": STEPS}
    common |= {"num_warmup_batches": 0, "init_learning_rate": RATE, "num_gpus": 3}
    common |= {"variable_update": "mirrored_strategy", "weight_decay": 0.0625}
    ring = {"cross_device_ops": "ring", "bytes_per_pack": 4, "optimizer": "adam"}
    auto = {"cross_device_ops": "auto", "optimizer": "momentum"}
    runs = [{**common, **ring, "gradient_reduction": "sum"}, {**common, **auto}]
    for flags, made in zip(runs, run_in_process(runs, tmp_path), strict=True):
        assert_like_the_oracle(made["losses"], expected_losses(slopes(3), flags))


def is_everyday(mode, *_):
    return mode in EVERYDAY_MODES


REPLICATING = ("distributed_all_reduce", "collective_all_reduce")
"""Modes with the manager of replicated."""
ACCUMULATING = [
    name
    for name, one in OF_ONE_PROCESS.items()
    if one.reduction is not Reduction.NONE and name not in REPLICATING
]


def accumulates(mode, devices, *_):
    return devices == 1 or mode not in ONE_TOWER


@pytest.mark.parametrize(
    ("mode", "devices", "passes", "optimizer", "decay", "reduction"),
    everyday_values(
        covering_pairs(
            *(ACCUMULATING, [1, 2], [2, 3], ["sgd", "lamb"], [0, 0.0625], ["mean", "sum"]),
            allowed=accumulates,
        ),
        among=is_everyday,
    ),
)
def test_passes_of_an_update_train_like_one_batch(
    mode, devices, passes, optimizer, decay, reduction
):
    losses, expected = both(
        **OF_ONE_PROCESS[mode].needs,
        num_gpus=devices,
        gradient_accumulation_steps=passes,
        optimizer=optimizer,
        weight_decay=decay,
        gradient_reduction=reduction,
        variable_update=mode,
    )
    assert_like_the_oracle(losses, expected)


@pytest.mark.slow
def test_passes_with_deferred_and_scaled_gradients():
    given = {"variable_update": "replicated", "num_gpus": 2, "gradient_accumulation_steps": 2}
    losses, expected = both(**given, variable_consistency="relaxed", weight_decay=0.0625)
    assert_like_the_oracle(losses, expected)
    losses, expected = both(**given, precision="fp16", fp16_loss_scale=4.0)
    np.testing.assert_allclose(losses, expected, rtol=0.02)


# all_reduce/test_oracle.py has every algorithm on every number of devices, and in stages.
@pytest.mark.parametrize(
    ("text", "devices"),
    slow_if(
        lambda case: case[1] != 4,
        [("tree/collective", 3), ("pscpu/xring#2", 4), ("copy:1:rechd:1K:pscpu#2", 8)],
    ),
)
def test_a_spec_trains_like_the_oracle(text, devices):
    losses, expected = both(
        num_gpus=devices,
        optimizer="momentum",
        weight_decay=0.0625,
        variable_update="distributed_all_reduce",
        all_reduce_spec=text,
        all_reduce_group_size=2,
    )
    np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-6)


STAGES = {
    "many-packs": {"gradient_repacking": 5},
    "hierarchical": {"hierarchical_copy": True},
    "own-memories": {"all_reduce_spec": "rechd", "all_reduce_share_memory": False},
    "everything": {
        "gradient_repacking": 2,
        "agg_small_grads_max_bytes": 64,
        "allreduce_merge_scope": 3,
        "all_reduce_spec": "xring",
        "sparse_to_dense_grads": True,
    },
}


@pytest.mark.parametrize(
    ("name", "devices", "reduction", "relaxed"),
    slow_if(
        lambda case: case[:2] != ("everything", 2),
        [
            ("many-packs", 3, "mean", True),
            ("hierarchical", 4, "mean", True),
            ("own-memories", 3, "mean", False),
            ("everything", 1, "mean", False),
            ("everything", 2, "mean", True),
            ("everything", 8, "sum", False),
        ],
    ),
)
def test_stages_do_not_change_training(name, devices, reduction, relaxed):
    losses, expected = both(
        num_gpus=devices,
        optimizer="momentum",
        weight_decay=0.0625,
        variable_update="replicated",
        variable_consistency="relaxed" if relaxed else "strong",
        gradient_reduction=reduction,
        **STAGES[name],
    )
    assert_like_the_oracle(losses, expected)


@pytest.mark.parametrize(
    ("devices", "decay", "optimizer", "place"),
    slow_if(
        lambda case: case[0] != 2,
        [(1, 0, "momentum", "gpu"), (2, 0.0625, "sgd", "cpu"), (3, 0.0625, "momentum", "gpu")],
    ),
)
def test_staged_variables_are_read_one_step_late(devices, decay, optimizer, place):
    losses, expected = both(
        num_gpus=devices,
        optimizer=optimizer,
        weight_decay=decay,
        local_parameter_device=place,
        staged_vars=True,
    )
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize("precision", slow_if(["fp16"], ["bf16", "fp16"]))
def test_staged_variables_in_sixteen_bits_follow_the_oracle(precision):
    losses, expected = both(num_gpus=2, weight_decay=0.0625, precision=precision, staged_vars=True)
    np.testing.assert_allclose(losses, expected, rtol=5e-2, atol=2e-2)
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("spec", "precision", "compact"),
    everyday_values(covering_pairs(["xring", "pscpu"], ["bf16", "fp16"], [False, True])),
)
def test_gradients_in_sixteen_bits_follow_the_oracle(spec, precision, compact):
    losses, expected = both(
        num_gpus=3,
        optimizer="momentum",
        weight_decay=0.0625,
        precision=precision,
        variable_update="replicated",
        all_reduce_spec=spec,
        compact_gradient_transfer=compact,
    )
    np.testing.assert_allclose(losses, expected, rtol=5e-2, atol=2e-2)


KINDS = (("bf16", False), ("fp16", False), ("fp16", True))
OF_KINDS = [
    (optimizer, *kind)
    for number, (optimizer, spec) in enumerate(OPTIMIZERS.items())
    for kind in [one for one in KINDS if not (spec.refuses_fp16 and one[1])][number % 2 :: 2]
]


@pytest.mark.parametrize(
    ("mode", "optimizer", "precision", "fp16_vars"),
    everyday_values(
        ((mode, *case) for mode, case in zip(itertools.cycle(SEVERAL_TOWERS), OF_KINDS)),
        among=is_everyday,
    ),
)
def test_sixteen_bit_losses_follow_the_oracle(mode, optimizer, precision, fp16_vars):
    losses, expected = both(
        num_gpus=2,
        optimizer=optimizer,
        weight_decay=0.0625,
        precision=precision,
        fp16_vars=fp16_vars,
        variable_update=mode,
    )
    np.testing.assert_allclose(losses, expected, rtol=5e-2, atol=2e-2)
    # A run that silently computed in float32 would agree far better than 16 bits can.
    assert not np.allclose(losses, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "mode",
    slow_if(
        ["mirrored_strategy"],
        ["parameter_server", "mirrored_strategy"],
    ),
)
def test_only_variables_in_sixteen_bits_lose_what_is_less_than_half_a_step(mode):
    # Below 1 numbers are 2^-11 apart in fp16, and no gradient here is as large as 8.
    flags = {"num_gpus": 2, "variable_update": mode, "init_learning_rate": 2.0**-15}
    flags |= {"precision": "fp16", "weight_decay": 0.25}
    assert len(set(run(fp16_vars=True, **flags))) == 1
    wide = run(fp16_vars=False, **flags)
    assert wide[-1] < wide[0]


SIXTEEN_BITS: dict[str, dict[str, object]] = {
    "plain": {},
    "variables": {"fp16_vars": True, "sparse_to_dense_grads": True},
    "wide": {"compact_gradient_transfer": False, "optimizer": "momentum"},
    "packed": {"gradient_repacking": 2},
    "buckets": {"gradient_bucket_bytes": 64},
}
BY_ALGORITHMS = ("replicated", "distributed_all_reduce", "collective_all_reduce")


def kinds_of(number, mode):
    """One of three for all modes, and one of two for those that pack."""
    common = [("plain", "variables", "wide")[number % 3]]
    return [*common, ("packed", "buckets")[number % 2]] if mode in BY_ALGORITHMS else common


@pytest.mark.parametrize(
    ("mode", "devices", "kind"),
    everyday_values(
        (
            (mode, 2 + number % 2, kind)
            for number, mode in enumerate([*SEVERAL_TOWERS[:-1], "distributed_all_reduce"])
            for kind in kinds_of(number, mode)
        ),
        among=lambda mode, *_: mode in ("parameter_server", "replicated"),
    ),
)
def test_means_fit_sixteen_bits_where_the_gradients_of_towers_do(mode, devices, kind):
    flags = {"variable_update": mode, "num_gpus": devices, **SIXTEEN_BITS[kind]}
    if mode == "mirrored_strategy":
        flags["cross_device_ops"] = "reduction_to_one_device"
    if mode == "distributed_all_reduce":
        flags["all_reduce_spec"] = "pscpu:16:xring"
    built = build("steep", weight_decay=0.0, precision="fp16", fp16_loss_scale=128.0, **flags)
    built.step(RATE).loss.numpy()
    # The first of Nesterov's steps is 1 + 0.9 times as long.
    rate = RATE * (1.9 if kind == "wide" else 1.0)
    expected = -rate * np.array([1.0, 60.0, 70.0, 100.0, -300.0, 500.0])
    kernel, table = (built.manager.savable_variables()[name] for name in ("kernel", "table"))
    for copy in kernel.copies:
        np.testing.assert_allclose(copy.numpy(), expected, rtol=1e-3)
    for copy in table.copies:
        np.testing.assert_allclose(copy.numpy()[1], expected, rtol=1e-3)
        assert not copy.numpy()[[0, 2]].any()


def test_the_base_loss_leaves_the_l2_loss_out_but_trains_with_it():
    losses, total = both(num_gpus=2, weight_decay=0.0625, loss_type_to_report="base_loss")
    assert losses[0] == pytest.approx(total[0] - 0.0625 * 5 / 2, rel=1e-5)
    assert losses[-1] < total[-1]


@pytest.mark.parametrize("mode", slow_if(["parameter_server"], ["parameter_server", "replicated"]))
def test_plain_descent_divides_the_rate_and_no_gradient(mode):
    more = {"num_gpus": 2, "variable_update": mode}
    made = {
        optimizer: record_of(optimizer=optimizer, **more).placement.reduction_operations
        for optimizer in ("sgd", "momentum")
    }
    assert made["sgd"] < made["momentum"]


CLIPPED = {"gradient_clip": lambda g: np.clip(g, -0.75, 0.75)}


def test_every_way_of_clipping_is_known():
    assert CLIPPED.keys() == CLIPPINGS.keys()


@pytest.mark.parametrize("flag", CLIPPED)
def test_gradients_are_clipped_after_reduction_and_decay(flag):
    c = slopes(2).mean()
    weights, expected = np.array([1.0, 2.0]), []
    for _ in range(STEPS):
        expected.append(c * weights.prod() + 0.5 * (weights @ weights) / 2)
        weights = weights - RATE * CLIPPED[flag](c * weights[::-1] + 0.5 * weights)
    given = {"weight_decay": 0.5, "variable_update": "replicated", flag: 0.75}
    np.testing.assert_allclose(run(num_gpus=2, **given), expected, rtol=1e-5)
    passes = run(num_gpus=1, gradient_accumulation_steps=2, **given)  # of the same images
    np.testing.assert_allclose(passes, expected, rtol=1e-5)


@pytest.mark.slow
def test_fp16_loss_scale_does_not_change_the_update():
    # Powers of two are exact, so only overflow or a forgotten division would show.
    first = run(num_gpus=2, precision="fp16", fp16_loss_scale=1.0)
    second = run(num_gpus=2, precision="fp16", fp16_loss_scale=256.0)
    np.testing.assert_allclose(first, second, rtol=1e-3)
