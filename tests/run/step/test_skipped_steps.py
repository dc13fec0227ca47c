"""Steps that an automatic loss scale skips, in every mode and with every optimizer."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable

import built_runs
import numpy as np
import pytest
import tensorflow as tf
from built_runs import MODES
from covering import covering_pairs

from cnnbench.run.driver.build import BuiltRun

pytestmark = pytest.mark.usefixtures("quick_start")

HARMLESS, NAN, INFINITY = 0, 13, 14
SCALE = 1024.0

State = dict[str, np.ndarray]


def build(**flags: object) -> BuiltRun:
    scaled = {"precision": "fp16", "fp16_enable_auto_loss_scale": True, "fp16_loss_scale": SCALE}
    return built_runs.build(**{**scaled, **flags})


def step(built: BuiltRun, bad: Iterable[int] = (), label: int = NAN) -> tuple[float, bool]:
    """One step in which the last example of each tower in `bad` spoils its gradients."""
    for tower, (_, labels) in enumerate(built.inputs._towers):
        labels.assign([HARMLESS, label if tower in set(bad) else HARMLESS])
    result = built.step()
    return float(result.loss.numpy()), bool(result.skipped.numpy())


def everything(built: BuiltRun) -> dict[str, object]:
    """Every copy of every variable, moments, slots and the optimizer's scalars."""
    facades = {**built.manager.savable_variables(), **built.slots}
    return {
        f"{name}@{copy}": variable
        for name, facade in facades.items()
        for copy, variable in enumerate(facade.copies)
    } | {
        f"{name}@updated {copy}": variable
        for name in built.manager.savable_variables()
        for copy, variable in enumerate(built.manager.updated(name).copies)
        if built.manager.updated(name) is not facades[name]
    }


def state(built: BuiltRun) -> State:
    return {name: variable.numpy() for name, variable in everything(built).items()}


def restore(built: BuiltRun, saved: State) -> None:
    for name, variable in everything(built).items():
        variable.assign(saved[name])


def changed(before: State, after: State) -> set[str]:
    """Names of what is not bit for bit the same."""
    return {n for n in before if before[n].tobytes() != after[n].tobytes()}


@pytest.mark.parametrize(
    ("mode", "towers", "optimizer"),
    [
        pytest.param(*mode.values, *others, id="-".join(map(str, (mode.id, *others))))
        for mode, *others in covering_pairs(MODES, [1, 2, 3], ["momentum", "rmsprop", "adam"])
    ],
)
def test_a_bad_gradient_of_any_tower_skips_the_step(
    mode: dict[str, str], towers: int, optimizer: str
) -> None:
    built = build(**mode, optimizer=optimizer, num_gpus=towers)
    scale = built.step.loss_scale
    start = state(built)
    step(built)
    step(built)
    assert len(changed(start, state(built))) > len(start) // 2
    undisturbed = state(built)
    alone = mode["variable_update"] == "independent" and towers > 1
    for bad in range(towers):
        for label in (NAN, INFINITY):
            restore(built, start)
            step(built)
            scale.variables()["scale"].assign(SCALE)
            before = state(built)
            loss, skipped = step(built, [bad], label)
            assert np.isfinite(loss)
            assert skipped
            assert scale.value == SCALE / 2
            after = state(built)
            if alone:
                assert {name.split("@")[1] for name in changed(before, after)} == {
                    str(tower) for tower in range(towers) if tower != bad
                }
                mine = {n for n in before if n.endswith(f"@{bad}")}
                step(built, set(range(towers)) - {bad})
            else:
                assert changed(before, after) == set()
                mine = set(before)
                step(built)
            # A step that never was: what follows is as if it had been left out.
            assert {n for n in changed(undisturbed, state(built)) if n in mine} == set()


AGGREGATIONS = {
    "packed": {"gradient_repacking": 2, "all_reduce_spec": "rechd"},
    "joined": {"agg_small_grads_max_bytes": 4096, "all_reduce_spec": "xring#2"},
    "not compact": {"compact_gradient_transfer": False},
    "on the host": {"local_parameter_device": "cpu"},
}


@pytest.mark.parametrize("flags", AGGREGATIONS.values(), ids=AGGREGATIONS)
def test_no_aggregation_hides_a_bad_gradient(flags: dict[str, object]) -> None:
    built = build(variable_update="replicated", num_gpus=3, optimizer="momentum", **flags)
    step(built)
    for bad, label in itertools.product(range(3), (NAN, INFINITY)):
        before = state(built)
        _, skipped = step(built, [bad], label)
        assert skipped
        assert changed(before, state(built)) == set()
        _, skipped = step(built)
        assert not skipped


@pytest.mark.parametrize("label", [NAN, INFINITY])
def test_deferred_gradients_are_judged_when_they_would_be_applied(label: int) -> None:
    built = build(
        variable_update="replicated",
        num_gpus=2,
        optimizer="adam",
        variable_consistency="relaxed",
        weight_decay=0.25,
    )
    seen = []
    for bad in ([], [1], [], [], []):
        before = state(built)
        _, skipped = step(built, bad, label)
        seen.append(skipped)
        # The moments are those of the step itself, which is a good one.
        others = {n for n in changed(before, state(built)) if "moving_" not in n}
        assert (others == set()) is skipped
    assert seen == [False, False, True, False, False]
    assert built.step.loss_scale.value == SCALE / 2
    assert all(np.isfinite(value).all() for value in state(built).values())


def test_where_gradients_wait_the_averages_are_guarded_by_their_own_step() -> None:
    built = build(
        variable_update="replicated",
        num_gpus=2,
        variable_consistency="relaxed",
        bn_stats="mean",
        allow_nonfinite=True,
    )
    averages = []
    for spoilt in (False, True, False):
        for images, _ in built.inputs._towers:
            images.assign(tf.fill(images.shape, tf.cast(np.inf if spoilt else 1.0, images.dtype)))
        step(built)
        averages.append({n: v for n, v in state(built).items() if "moving_" in n})
    first, second, third = averages
    assert first
    assert changed(first, second) == set()
    assert changed(second, third) != set()
    assert all(np.isfinite(value).all() for value in third.values())


def test_independent_towers_share_one_scale() -> None:
    built = build(variable_update="independent", num_gpus=3)
    step(built, [0, 2])
    assert built.step.loss_scale.value == SCALE / 2


@pytest.fixture(scope="module")
def clipped() -> Callable[..., BuiltRun]:
    """A step of each mode on three towers, traced once; each test has the first state of it."""

    @functools.cache
    def make(**mode: str) -> tuple[BuiltRun, State]:
        own = {"num_gpus": 3, "gradient_clip": 1e-3, "fp16_inc_loss_scale_every_n": 3}
        built = build(**mode, **own)
        return built, {**state(built), **_scales(built)}

    def fresh(**mode: str) -> BuiltRun:
        built, first = make(**mode)
        restore(built, first)
        for name, variable in built.step.loss_scale.variables().items():
            variable.assign(first[name])
        return built

    return fresh


def _scales(built: BuiltRun) -> State:
    return {name: one.numpy() for name, one in built.step.loss_scale.variables().items()}


@pytest.mark.parametrize("mode", MODES)
def test_the_scale_doubles_after_exactly_n_good_steps(mode: dict[str, str], clipped) -> None:
    built = clipped(**mode)
    seen = []
    for bad in ([], [], [1], [], [], [], [], []):
        step(built, bad)
        seen.append(built.step.loss_scale.value / SCALE)
    assert seen == [1, 1, 0.5, 0.5, 0.5, 1, 1, 1]


@pytest.mark.parametrize("mode", MODES)
def test_clipping_does_not_hide_an_infinity(mode: dict[str, str], clipped) -> None:
    built = clipped(**mode)
    before = state(built)
    for label in (NAN, INFINITY):
        _, skipped = step(built, [0, 1, 2], label)
        assert skipped
    assert changed(before, state(built)) == set()
    assert built.step.loss_scale.value == SCALE / 4
    _, skipped = step(built)
    assert not skipped
    after = state(built)
    moved = [np.abs(after[n] - before[n]).max() for n in before if "/kernel@" in n]
    assert moved
    assert 0 < max(moved) <= 0.0625 * 1e-3 * 1.01


@pytest.mark.parametrize("policy", ["first", "mean"])
def test_moving_averages_are_skipped_too(policy: str) -> None:
    built = build(variable_update="replicated", num_gpus=2, bn_stats=policy)
    averages = [n for n in state(built) if "moving" in n and n.endswith("@0")]
    assert len(averages) == 2
    before = state(built)
    step(built, [1])
    assert changed(before, state(built)) == set()
    step(built)
    assert set(averages) <= changed(before, state(built))


def test_a_compiled_step_skips_as_well() -> None:
    built = build(variable_update="replicated", num_gpus=2, xla_compile=True)
    before = state(built)
    _, skipped = step(built, [1])
    assert skipped
    assert changed(before, state(built)) == set()
    _, skipped = step(built)
    assert not skipped
    assert built.step.loss_scale.value == SCALE / 2


def test_a_constant_scale_applies_what_it_gets() -> None:
    built = build(variable_update="replicated", num_gpus=2, fp16_enable_auto_loss_scale=False)
    built.inputs._towers[1][1].assign([HARMLESS, NAN])
    assert built.step().skipped is None
    kernel = built.manager.savable_variables()["conv0/kernel"].primary
    assert np.isnan(kernel.numpy()).any()


@pytest.mark.parametrize("mode", MODES)
def test_updates_and_checks_stay_where_the_variables_are(
    mode: dict[str, str], cpu_devices: tuple[str, ...], clipped
) -> None:
    built = clipped(**mode)
    checks = [o.device for o in built.step.graph.get_operations() if o.type == "IsFinite"]
    assert set(checks) == set(cpu_devices[:3])
    homes = {
        copy.device
        for facade in built.manager.savable_variables().values()
        for copy in facade.copies
        if copy.trainable
    }
    in_branches = [
        node.device
        for function in built.step.graph.as_graph_def().library.function
        for node in function.node_def
        if node.op.startswith("ResourceApply")
    ]
    assert set(in_branches) == homes
    unconditional = {o.type for o in built.step.graph.get_operations()}
    assert not any(kind.startswith("ResourceApply") for kind in unconditional)
