"""What managers have in common: names, copies, checkpoints, broadcasts.

Tests variable_mgr/towers.py.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from towers import optimizer_of, trained

from cnnbench.variable_mgr import VariableMgrSpec, create
from cnnbench.variable_mgr.modes import Copies
from cnnbench.variable_mgr.registry import find_mode

STRATEGIES = ("mirrored_strategy", "central_storage_strategy")
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
def test_a_manager_does_what_the_row_of_its_mode_says(
    mode, copies, make_manager, declared, cpu_devices
):
    manager = make_manager(mode, 3)
    row = find_mode(mode)
    assert (row.copies is Copies.ONE) is (copies == 1)
    savable = manager.savable_variables()
    assert list(savable) == [v.name for v in declared]
    for variable in declared:
        facade = savable[variable.name]
        assert len(facade.copies) == copies
        assert (facade.name, facade.shape) == (variable.name, variable.shape)
        assert {(c.trainable, c.dtype) for c in facade.copies} == {(variable.trainable, tf.float32)}
        prefix = "v" if row.strategy or copies == 1 else "v0"
        assert facade.primary.name == f"{prefix}/{variable.name}:0"
    assert manager.replicas_in_sync is row.in_sync is (mode != "independent")
    assert row.staged is (mode == "parameter_server")
    assert manager.get_devices() == cpu_devices[:3]
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


@pytest.mark.parametrize("mode", MODES)
def test_variables_are_made_once_and_eagerly_for_each_tower(
    mode, make_manager, declared, cpu_devices
):
    manager = make_manager(mode, 2)
    with pytest.raises(RuntimeError, match="exist already"):
        manager.create_variables()
    for tower in (-1, 2):
        with pytest.raises(IndexError, match=f"tower {tower} of 2"):
            manager.variable(tower, "conv0/kernel")
    spec = VariableMgrSpec(mode=find_mode(mode), devices=cpu_devices[:2], cpu_device=cpu_devices[0])
    with pytest.raises(RuntimeError, match="before the step is traced"):
        tf.function(create(spec, declared).create_variables, autograph=False)()


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
        ("mirrored_strategy", True, [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]),
    ],
)
def test_copies_after_initialization(mode, with_slots, variables, slots, make_manager):
    manager = make_manager(mode, 3)
    own = manager.savable_slots(momentum_for(manager))
    scramble(manager, own)
    manager.after_initialization(own.values() if with_slots else ())
    assert first_elements(manager.savable_variables()) == [variables] * 5
    assert first_elements(own) == [slots] * 4


@pytest.mark.parametrize(
    ("mode", "towers"), [*((mode, 3) for mode in (*MODES, *STRATEGIES)), (MODES[1], 1)]
)
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


def test_a_tower_without_slots_is_an_error(make_manager):
    manager = make_manager("replicated", 2)
    optimizer = optimizer_of("momentum")
    assert manager.savable_slots(optimizer) == {}
    optimizer.create_slots(trained(manager, 0))
    with pytest.raises(KeyError):
        manager.savable_slots(optimizer)
