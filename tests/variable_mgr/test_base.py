"""What managers have in common: names, copies, checkpoints, broadcasts."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from bowls import optimizer_of

from cnnbench.errors import FlagError
from cnnbench.variable_mgr import VariableMgrSpec, create, registry
from cnnbench.variable_mgr.modes import Copies

MODES = ("parameter_server", "replicated", "independent", "distributed_replicated")


@pytest.mark.parametrize(
    ("mode", "copies"),
    [
        ("parameter_server", 1),
        ("central_storage_strategy", 1),
        ("replicated", 3),
        ("independent", 3),
        ("distributed_replicated", 3),
        ("mirrored_strategy", 3),
    ],
)
def test_a_manager_does_what_the_row_of_its_mode_says(mode, copies, make_manager, cpu_devices):
    manager = make_manager(mode, 3)
    row = registry.find(mode)
    assert (row.copies is Copies.ONE) is (copies == 1)
    assert {len(one.copies) for one in manager.savable_variables().values()} == {copies}
    assert manager.replicas_in_sync is row.in_sync is (mode != "independent")
    assert row.staged is (mode == "parameter_server")
    assert manager.get_devices() == cpu_devices[:3]


@pytest.mark.parametrize(
    "mode", ["replicated", "distributed_all_reduce", "independent", "distributed_replicated"]
)
def test_copies_are_not_staged(mode, make_manager):
    with pytest.raises(FlagError, match=f"--staged_vars=true: does not work with .*={mode}"):
        make_manager(mode, 2, staged=True)


@pytest.mark.parametrize("mode", MODES)
def test_a_single_tower_is_in_sync_with_itself(mode, make_manager):
    assert make_manager(mode, 1).replicas_in_sync


@pytest.mark.parametrize("mode", MODES)
def test_sixteen_bits_are_for_what_normalisation_does_not_use(mode, make_manager, declared):
    managers = [make_manager(mode, 3, variable_dtype=dtype) for dtype in ("float32", "float16")]
    wide, narrow = (manager.savable_variables() for manager in managers)
    wanted = [tf.float32 if "batchnorm" in v.name else tf.float16 for v in declared]
    assert [narrow[v.name].dtype for v in declared] == wanted
    slots = managers[1].savable_slots(momentum_for(managers[1]))
    for name, variable in wide.items():
        for one, other in zip(variable.copies, narrow[name].copies, strict=True):
            np.testing.assert_array_equal(one.numpy().astype(other.numpy().dtype), other.numpy())
        if f"{name}/momentum" in slots:
            assert slots[f"{name}/momentum"].dtype == narrow[name].dtype


def test_copies_are_as_declared(make_manager, declared):
    savable = make_manager("replicated", 3).savable_variables()
    assert list(savable) == [v.name for v in declared]
    for variable in declared:
        facade = savable[variable.name]
        assert facade.shape == variable.shape
        assert all(c.trainable is variable.trainable for c in facade.copies)
        assert all(c.dtype == tf.float32 for c in facade.copies)


def test_names_of_towers_1_and_10_do_not_collide(make_manager, trainable):
    manager = make_manager("replicated", 11)
    names = [[v.name for v in manager.trainable_variables_on_device(t)] for t in range(11)]
    assert names[1] == [f"v1/{v.name}:0" for v in trainable]
    assert names[10] == [f"v10/{v.name}:0" for v in trainable]
    assert len({name for tower in names for name in tower}) == 11 * len(trainable)


def test_shared_variables_are_called_v(make_manager, trainable):
    owned = make_manager("parameter_server", 2).trainable_variables_on_device(1)
    assert [v.name for v in owned] == [f"v/{v.name}:0" for v in trainable]


@pytest.mark.parametrize("mode", MODES)
def test_variables_are_created_once_and_eagerly(mode, make_manager, declared, cpu_devices):
    with pytest.raises(RuntimeError, match="exist already"):
        make_manager(mode, 2).create_variables()
    spec = VariableMgrSpec(variable_update=mode, devices=cpu_devices[:2], cpu_device=cpu_devices[0])
    manager = create(spec, declared)
    with pytest.raises(RuntimeError, match="before the step is traced"):
        tf.function(manager.create_variables, autograph=False)()
    with pytest.raises(KeyError, match="conv0/kernel"):
        manager.variable(0, "conv0/kernel")


@pytest.mark.parametrize("mode", MODES)
def test_wrong_names_and_towers(mode, make_manager):
    manager = make_manager(mode, 2)
    with pytest.raises(KeyError, match="no variable 'conv9/kernel'"):
        manager.variable(0, "conv9/kernel")
    for tower in (-1, 2):
        with pytest.raises(IndexError, match=f"tower {tower} of 2"):
            manager.variable(tower, "conv0/kernel")


def scramble(manager, slots):
    """Gives every copy of everything a value of its own."""
    towers = len(manager.get_devices())
    for facade in (*manager.savable_variables().values(), *slots.values()):
        for tower in range(towers):
            facade.copy(tower).assign(tf.fill(facade.shape, float(tower + 1)))


def first_elements(facades):
    return [[float(c.numpy().ravel()[0]) for c in f.copies] for f in facades.values()]


def momentum_for(manager):
    optimizer = optimizer_of("momentum")
    for group in manager.updated_groups():
        optimizer.create_slots(group)
    return optimizer


@pytest.mark.parametrize(
    ("mode", "with_slots", "variables", "slots"),
    [
        ("replicated", True, [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]),
        ("replicated", False, [1.0, 1.0, 1.0], [1.0, 2.0, 3.0]),
        ("independent", True, [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]),
        ("parameter_server", True, [3.0], [3.0]),
    ],
)
def test_copies_after_initialization(mode, with_slots, variables, slots, make_manager):
    manager = make_manager(mode, 3)
    own = manager.savable_slots(momentum_for(manager))
    scramble(manager, own)
    manager.after_initialization(own.values() if with_slots else ())
    assert first_elements(manager.savable_variables()) == [variables] * 5
    assert first_elements(own) == [slots] * 4


@pytest.mark.parametrize(("mode", "towers"), [*((mode, 3) for mode in MODES), (MODES[1], 1)])
def test_checkpoint_names_do_not_depend_on_mode_or_towers(mode, towers, make_manager, trainable):
    manager = make_manager(mode, towers)
    optimizer = optimizer_of("adam")
    groups = manager.updated_groups()
    for group in groups:
        optimizer.create_slots(group)
    slots = manager.savable_slots(optimizer)
    assert set(slots) == {
        *(f"{v.name}/{slot}" for v in trainable for slot in ("m", "v")),
        "optimizer/beta1_power",
        "optimizer/beta2_power",
    }
    for name, facade in slots.items():
        assert facade.name == name
        assert len(facade.copies) == len(groups)
    kernel = manager.updated("conv0/kernel").copies
    for variable, slot in zip(kernel, slots["conv0/kernel/m"].copies, strict=True):
        assert slot is optimizer.slot_variables()["m", variable.ref()]
        assert slot.device == variable.device


def test_no_slots_no_names(make_manager):
    manager = make_manager("replicated", 2)
    assert manager.savable_slots(optimizer_of("sgd")) == {}


def test_a_tower_without_slots_is_an_error(make_manager):
    manager = make_manager("replicated", 2)
    optimizer = optimizer_of("momentum")
    optimizer.create_slots(manager.trainable_variables_on_device(0))
    with pytest.raises(KeyError):
        manager.savable_slots(optimizer)
