"""Steps that an automatic loss scale skips, in every mode, with every optimizer.

Tests cnnbench/run/step/loss_scale.py.
"""

import functools
import itertools

import numpy as np
import pytest
import short_runs
from covering import slow_if
from short_runs import KINDS, RATE

pytestmark = pytest.mark.usefixtures("quick_start")

HARMLESS, NAN, INFINITY = 0, 13, 14
SCALE = 1024.0


def build(**flags):
    scaled = {"precision": "fp16", "fp16_enable_auto_loss_scale": True, "fp16_loss_scale": SCALE}
    return short_runs.build(**{**scaled, **flags})


def step(built, bad=(), label=NAN):
    """One step in which the last example of each tower in `bad` spoils its gradients."""
    for tower, (_, labels) in enumerate(built.inputs._towers):
        labels.assign([HARMLESS, label if tower in set(bad) else HARMLESS])
    result = built.step(RATE)
    return float(result.loss.numpy()), bool(result.skipped.numpy())


def spoilt(towers):
    """Every tower and either label, though not with one another."""
    labels = itertools.cycle((NAN, INFINITY))
    return [(number % towers, next(labels)) for number in range(max(towers, 2))]


def everything(built):
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


def state(built):
    return {name: variable.numpy() for name, variable in everything(built).items()}


def restore(built, saved):
    for name, variable in everything(built).items():
        variable.assign(saved[name])


def changed(before, after):
    """Names of what is not bit for bit the same."""
    return {n for n in before if before[n].tobytes() != after[n].tobytes()}


# Every mode and every optimizer, though not with one another; AGGREGATIONS has algorithms, and
# replicated variables.
STEPS = slow_if(
    lambda case: case.id != "ps",
    [
        pytest.param({**mode.values[0], "optimizer": optimizer, "num_gpus": 2}, id=mode.id)
        for mode, optimizer in zip(KINDS, itertools.cycle(["momentum", "rmsprop", "adam"]))
    ],
)
ALONE = pytest.param({"optimizer": "adam"}, id="alone")


@pytest.fixture(scope="module")
def fresh():
    """A step with clipping, traced once for all tests; each test has the first state of it."""

    @functools.cache
    def make(*flags):
        built = build(**dict(flags), gradient_clip=1e-3, fp16_inc_loss_scale_every_n=3)
        scales = built.step.loss_scale.variables()
        return built, state(built), {name: one.numpy() for name, one in scales.items()}

    def fresh(flags):
        built, first, scales = make(*flags.items())
        restore(built, first)
        for name, variable in built.step.loss_scale.variables().items():
            variable.assign(scales[name])
        return built

    return fresh


@pytest.mark.parametrize("flags", [*STEPS, ALONE])
def test_a_bad_gradient_of_any_tower_skips_the_step(flags, fresh):
    built, towers = fresh(flags), flags.get("num_gpus", 1)
    scale = built.step.loss_scale
    start = state(built)
    step(built)
    step(built)
    assert len(changed(start, state(built))) > len(start) // 2
    undisturbed = state(built)
    for bad, label in spoilt(towers):
        restore(built, start)
        step(built)
        scale.variables()["scale"].assign(SCALE)
        before = state(built)
        loss, skipped = step(built, [bad], label)
        assert np.isfinite(loss)
        assert skipped
        assert scale.value == SCALE / 2
        after = state(built)
        if flags.get("variable_update") == "independent":
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
    assert built.step.function.traces == 1


@pytest.mark.parametrize("flags", STEPS)
def test_updates_and_checks_stay_where_the_variables_are(flags, cpu_devices, fresh):
    built = fresh(flags)
    checks = [o.device for o in built.step.graph.get_operations() if o.type == "IsFinite"]
    assert set(checks) == set(cpu_devices[:2])
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


AGGREGATIONS = {
    "packed, on the host": {
        **{"gradient_repacking": 2, "all_reduce_spec": "rechd"},
        "local_parameter_device": "cpu",
    },
    "joined, not compact": {
        **{"agg_small_grads_max_bytes": 4096, "all_reduce_spec": "xring#2"},
        "compact_gradient_transfer": False,
    },
}


@pytest.mark.parametrize("name", slow_if(["joined, not compact"], AGGREGATIONS))
def test_no_aggregation_hides_a_bad_gradient(name):
    flags = AGGREGATIONS[name]
    built = build(variable_update="replicated", num_gpus=2, optimizer="momentum", **flags)
    step(built)
    for bad, label in spoilt(2):
        before = state(built)
        _, skipped = step(built, [bad], label)
        assert skipped
        assert changed(before, state(built)) == set()
        _, skipped = step(built)
        assert not skipped


@pytest.fixture(scope="module")
def relaxed():
    """A step whose gradients wait for the next one."""
    return build(
        **{"variable_update": "replicated", "num_gpus": 2, "variable_consistency": "relaxed"},
        **{"optimizer": "adam", "bn_stats": "mean", "weight_decay": 0.25},
    )


@pytest.mark.slow
def test_deferred_gradients_are_judged_when_they_would_be_applied(relaxed):
    for label in (NAN, INFINITY):
        relaxed.step.loss_scale.variables()["scale"].assign(SCALE)
        seen = []
        for bad in ([], [1], [], [], []):
            before = state(relaxed)
            _, skipped = step(relaxed, bad, label)
            seen.append(skipped)
            # The moments are those of the step itself, which is a good one.
            others = {n for n in changed(before, state(relaxed)) if "moving_" not in n}
            assert (others == set()) is skipped
        assert seen == [False, False, True, False, False]
        assert relaxed.step.loss_scale.value == SCALE / 2
    assert all(np.isfinite(value).all() for value in state(relaxed).values())


def test_where_gradients_wait_the_averages_are_guarded_by_their_own_step(relaxed):
    drawn = [images.numpy() for images, _ in relaxed.inputs._towers]
    averages = []
    for spoilt in (False, True, False):
        for own, (images, _) in zip(drawn, relaxed.inputs._towers, strict=True):
            images.assign(np.full_like(own, np.inf) if spoilt else own)
        step(relaxed)
        averages.append({n: v for n, v in state(relaxed).items() if "moving_" in n})
    first, second, third = averages
    assert first
    assert changed(first, second) == set()
    assert changed(second, third) != set()
    assert all(np.isfinite(value).all() for value in third.values())


@pytest.mark.slow
def test_a_compiled_step_skips_as_well():
    built = build(xla_compile=True)
    averages = [n for n in state(built) if "moving" in n]
    assert len(averages) == 2
    before = state(built)
    _, skipped = step(built, [0])
    assert skipped
    assert changed(before, state(built)) == set()
    _, skipped = step(built)
    assert not skipped
    assert set(averages) <= changed(before, state(built))
    assert built.step.loss_scale.value == SCALE / 2
