"""--check_replica_consistency: clean runs of every mode, and one bit of one copy that is wrong.

Tests cnnbench/run/driver/observers/replica_check.py.
"""

import contextlib
import dataclasses
import re

import numpy as np
import pytest
import tensorflow as tf
from short_runs import KINDS, NETWORKS
from towers import trained

from cnnbench import BenchmarkCNN, Params, RunRecord
from cnnbench.errors import ReplicaDivergenceError
from cnnbench.plan import parse_run
from cnnbench.records.measurements import Measurements
from cnnbench.run.driver.observers.replica_check import ReplicaCheck
from cnnbench.variable_mgr.towers import TowerVariable

pytestmark = pytest.mark.usefixtures("quick_start")

WARMUP, STEPS = 1, 4
TINY = {
    "model": "poison",
    "plugin": NETWORKS,
    "device": "cpu",
    "batch_size": 2,
    "num_batches": STEPS,
    "num_warmup_batches": WARMUP,
    "check_replica_consistency": 2,
}
RELAXED = {
    "variable_update": "replicated",
    "variable_consistency": "relaxed",
    "precision": "fp16",
    "fp16_enable_auto_loss_scale": True,
}


def flags(**more):
    return {**TINY, **more}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "towers"),
    [
        *(pytest.param(*mode.values, 2, id=mode.id) for mode in KINDS if mode.id != "replicated"),
        pytest.param(RELAXED, 2, id="relaxed"),
    ],
)
def test_a_clean_run_passes_and_says_how_often_it_was_checked(mode, towers):
    shared = ("parameter_server", "independent")
    copies = towers > 1 and mode["variable_update"] not in shared
    params = Params.from_dict(flags(**mode, num_gpus=towers, optimizer="adam", bn_stats="mean"))
    record = BenchmarkCNN(params).run()
    # Before the first step and after global steps 2 and 4.
    assert record.measured.replica_checks == (3 if copies else None)
    assert RunRecord.from_json(record.to_json()).measured == record.measured
    # A notice says where there is nothing to compare.
    words = [f"--{name}={str(value).lower()}" for name, value in mode.items()]
    notices = parse_run([f"--num_gpus={towers}", "--check_replica_consistency=1", *words]).notices
    assert copies != any("--check_replica_consistency has no" in line for line in notices)


class Spoiled:
    """A step after whose call number `at` one bit of a copy is another."""

    def __init__(self, step, variables, at):
        self._step, self._variables, self._left = step, variables, at

    def __getattr__(self, name):
        return getattr(self._step, name)

    def __call__(self, learning_rate):
        result = self._step(learning_rate)
        self._left -= 1
        if not self._left:
            for variable in self._variables:
                flip_lowest_bit(variable)
        return result


def flip_lowest_bit(variable):
    value = np.array(variable.numpy())  # copies of a variable may share memory
    value.view(f"u{value.itemsize}").reshape(-1)[-1] ^= 1
    variable.assign(value)


@pytest.fixture
def spoil(monkeypatch):
    """Spoils, in later runs, the copies that a function finds, after so many steps."""

    def spoil(find, after):
        build = BenchmarkCNN.build

        def spoiled(self):
            built = build(self)
            return dataclasses.replace(built, step=Spoiled(built.step, find(built), after))

        monkeypatch.setattr(BenchmarkCNN, "build", spoiled)

    return spoil


def weight(built, tower):
    return trained(built.manager, tower)[2]


def test_one_bit_of_one_copy_is_named(spoil, tmp_path, call):
    towers = 3
    spoil(lambda built: [weight(built, towers - 1)], WARMUP + 2)
    path = tmp_path / "record.json"
    given = flags(variable_update="replicated", num_gpus=towers, result_json=path)
    out, err = call(code=4, **given)
    assert "total images/sec" not in out
    (line,) = (line for line in err.splitlines() if "error" in line)
    found = r"diverged by global step 4: \S+/\S+ on tower 2 differs from tower 0 in 1 of \d+ "
    assert re.match(f"cnnbench: error: replicas {found}", line)
    record = RunRecord.from_json(path.read_text())
    assert record.error.type == "ReplicaDivergenceError"
    assert len(record.step_seconds) == 3
    assert record.measured.replica_checks == 3


@pytest.mark.slow
def test_a_slot_and_every_tower_that_differs_are_named(spoil):
    def slots(built):
        return [built.slots["optimizer/beta1_power"].copies[tower] for tower in (1, 3)]

    spoil(slots, WARMUP + 3)
    params = flags(variable_update="replicated", num_gpus=4, optimizer="adam")
    expected = (
        r"step 4: optimizer/beta1_power on towers 1, 3 differs from tower 0 in 1 of 1 values, "
        r"by at most [0-9.e-]+$"
    )
    with pytest.raises(ReplicaDivergenceError, match=expected):
        BenchmarkCNN(Params.from_dict(params)).run()


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int64])
def test_bits_are_compared_whatever_they_mean(dtype, cpu_devices):
    def check(values):
        copies = []
        for device, value in zip(cpu_devices, values, strict=False):
            with tf.device(device):
                copies.append(tf.Variable(tf.cast([1.0, value], dtype)))
        measurements = Measurements(command=(), config={})
        ReplicaCheck((TowerVariable("v", copies),), 1, measurements).training_begins(7, 1)

    check([5.0, 5.0, 5.0])
    if dtype.is_floating:
        check([np.nan, np.nan])
        with pytest.raises(ReplicaDivergenceError, match=r"in 1 of 2 values, by at most 0$"):
            check([0.0, -0.0])
    with pytest.raises(ReplicaDivergenceError, match=r"step 7: v on tower 2 .* most 3\.000$"):
        check([5.0, 5.0, 8.0])


@pytest.mark.parametrize(
    ("others", "text"),
    [
        ([[5.0, 6.0], [5.0, 6.0]], None),
        ([[5.0, 6.0], [5.0, 7.0]], "v1 on worker 2 differs from worker 0"),
        ([[4.0, 6.0], [3.0, 6.0]], "v0 on workers 1, 2 differs from worker 0"),
    ],
)
def test_workers_compare_what_they_have(others, text):
    def variables(values):
        return tuple(
            TowerVariable(f"v{number}", [tf.Variable([1.0, value])])
            for number, value in enumerate(values)
        )

    sent = []

    class Group:
        def gather_bytes(self, own):
            sent.append(own)
            return sent

    def check(values):
        measurements = Measurements(command=(), config={})
        ReplicaCheck(variables(values), 1, measurements, Group()).training_begins(7, 1)

    check([5.0, 6.0])
    for values in others[:-1]:
        with contextlib.suppress(ReplicaDivergenceError):
            check(values)
    if text is None:
        check(others[-1])
        sent[1] = sent[1][:-1] + b"\1"
        text = "copies differ within worker 1"
    with pytest.raises(ReplicaDivergenceError, match=f"step 7: {text}$"):
        check(others[-1])
