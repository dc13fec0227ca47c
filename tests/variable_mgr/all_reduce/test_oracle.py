"""Every algorithm of the registry against NumPy's sum; new ones are picked up by themselves."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
import tensorflow as tf

from cnnbench.errors import FlagError, UsageError
from cnnbench.variable_mgr import all_reduce
from cnnbench.variable_mgr.all_reduce import ReduceContext
from cnnbench.variable_mgr.all_reduce.reducer import Reducer

COUNTS = (1, 2, 3, 4, 5, 7, 8)
DTYPES = (tf.float32, tf.float16, tf.bfloat16, tf.float64)
# Of these, the odd one leaves a ragged last chunk and the other splits into whole rows,
# both into several chunks in every dtype.
LONG = ((100_003,), (128, 514))
DEVICES = tuple(f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(max(COUNTS)))
NAMES = all_reduce.names()
SHARDED = tuple(f"{name}#{shards}" for name in NAMES for shards in (2, 3))
# All other pairs have a test of their own with the two levels.
TWO_LEVEL = (
    *(f"{name}/xring" for name in NAMES),
    *(f"copy/{name}" for name in NAMES),
    "pscpu/pscpu",
    "copy/xring#2",
    "copy:1K:pscpu#2:64K:xring",
)


def reducer(spec: str, count: int, share_memory: bool = True) -> Reducer:
    devices = DEVICES[:count]
    half = -(-count // 2)
    groups = [group for group in (devices[:half], devices[half:]) if group]
    context = ReduceContext(devices=devices, cpu_devices=devices, share_memory=share_memory)
    return Reducer(all_reduce.parse_all_reduce_spec(spec, NAMES), context, groups)


def refusal(spec: str, count: int) -> str | None:
    """Why a spec will not work with so many logical CPU devices."""
    try:
        reducer(spec, count)
    except FlagError as error:
        if isinstance(error.__cause__, UsageError):
            raise  # Not registered: no reason of an algorithm's own.
        return error.reason
    return None


def cases(specs: Iterable[str], counts: Iterable[int]) -> list[object]:
    """Specs with numbers of devices. What an algorithm refuses is left out, by its own word.

    A spec without shards that is always refused is skipped, with the reason.
    """
    result = []
    for spec in specs:
        reasons = {count: refusal(spec, count) for count in counts}
        working = [count for count, reason in reasons.items() if reason is None]
        result += [pytest.param(spec, count, id=f"{spec}-{count}") for count in working]
        if not set(working) - {1} and "#" not in spec:
            skip = pytest.mark.skip(reason=reasons[max(reasons)])
            result.append(pytest.param(spec, max(reasons), marks=skip, id=spec))
    return result


def inputs(count: int, dtypes: tuple[tf.DType, ...]) -> list[list[np.ndarray]]:
    """Integers by tower and tensor, small enough for sums to be exact in every dtype."""
    rng = np.random.default_rng(count)
    shapes = [(length,) for length in sorted({0, 1, 2, count - 1, count, count + 1})]
    shapes += [(), (3, 5, 7), *LONG]
    return [
        [
            rng.integers(-15, 16, size=shape).astype(dtype.as_numpy_dtype)
            for dtype in dtypes
            for shape in shapes
        ]
        for _ in range(count)
    ]


def reduce_all(
    spec: str, count: int, values: list[list[np.ndarray]], share_memory: bool
) -> list[list[tf.Tensor]]:
    step = tf.function(reducer(spec, count, share_memory), autograph=False)
    return step([[tf.constant(value) for value in tower] for tower in values])


def check(spec: str, count: int, dtypes: tuple[tf.DType, ...], share_memory: bool = True) -> None:
    values = inputs(count, dtypes)
    sums = reduce_all(spec, count, values, share_memory)
    assert len(sums) == count
    for number, column in enumerate(zip(*values, strict=True)):
        expected = np.sum([value.astype(np.int64) for value in column], axis=0)
        for device, per_device in enumerate(sums):
            total = per_device[number].numpy()
            where = f"{column[0].dtype} {column[0].shape} on device {device}"
            assert total.dtype == column[0].dtype, where
            np.testing.assert_array_equal(total.astype(np.int64), expected, where, strict=True)


@pytest.mark.parametrize(("spec", "count"), cases(NAMES, COUNTS))
def test_every_device_gets_the_exact_sum(spec, count):
    check(spec, count, DTYPES)


@pytest.mark.parametrize(("spec", "count"), cases(SHARDED, (3, 8)) + cases(TWO_LEVEL, (2, 5)))
def test_every_device_gets_the_exact_sum_in_shards_and_levels(spec, count):
    check(spec, count, DTYPES[:2])


@pytest.mark.parametrize(
    ("spec", "count"),
    cases(NAMES, [count for count in COUNTS if count > 1])
    + cases(SHARDED, (3, 8))
    + cases(TWO_LEVEL, (5,)),
)
def test_devices_with_memories_of_their_own_get_the_exact_sum(spec, count):
    check(spec, count, DTYPES[:1], share_memory=False)


@pytest.mark.parametrize(("spec", "count"), cases((*NAMES, *SHARDED), (5,)))
def test_devices_agree_to_the_last_bit(spec, count):
    rng = np.random.default_rng(5)
    values = [[rng.standard_normal(LONG[0]).astype(np.float32)] for _ in range(count)]
    sums = [total.numpy() for (total,) in reduce_all(spec, count, values, share_memory=False)]
    for total in sums[1:]:
        np.testing.assert_array_equal(total.view(np.int32), sums[0].view(np.int32))
    stacked = np.concatenate(values).astype(np.float64)
    # Each of at most n-1 additions rounds a partial sum by half a unit in its last place.
    bound = (count - 1) * np.finfo(np.float32).eps / 2 * np.abs(stacked).sum(0)
    assert np.all(np.abs(sums[0] - stacked.sum(0)) <= bound * 1.001)


@pytest.mark.parametrize("name", NAMES)
def test_an_algorithm_takes_every_number_of_devices_or_none(name):
    reasons = [refusal(name, count) for count in COUNTS if count > 1]
    assert len(set(map(bool, reasons))) == 1, reasons


@pytest.mark.parametrize(
    "name", ["copy", "hierarchical_copy", "psgpu", "pscpu", "rechd", "tree", "xring"]
)
def test_what_needs_no_library_works_on_cpus(name):
    assert refusal(name, 7) is None
