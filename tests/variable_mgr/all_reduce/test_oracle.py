"""Every algorithm of the registry against NumPy's sum; new ones are picked up by themselves.

Algorithms alone are tried at every number of devices; with memories of their own, in shards, in
levels, in every dtype and within stages (`STAGES`) in pairs.

Tests variable_mgr/all_reduce/algorithms/*.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from covering import slow_if
from towers import ByTower, run_through

from cnnbench.errors import FlagError, UsageError
from cnnbench.variable_mgr import all_reduce
from cnnbench.variable_mgr.all_reduce import ReduceContext
from cnnbench.variable_mgr.all_reduce.reducer import AllReducer
from cnnbench.variable_mgr.packing import AggregationSpec
from cnnbench.variable_mgr.stages import make_stages

COUNTS = (1, 2, 3, 4, 8)
DTYPES = (tf.float32, tf.float16, tf.bfloat16, tf.float64)
# Of these, the odd one leaves a ragged last chunk and the other splits into whole rows,
# both into several chunks in every dtype.
LONG = ((100_003,), (128, 514))
DEVICES = tuple(f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(8))
NAMES = all_reduce.names()
TWO_SHARDS, THREE_SHARDS = ([f"{name}#{shards}" for name in NAMES] for shards in (2, 3))
# What shall be around the algorithms, and the dtypes of gradients that it takes at once.
# Small are the gradients of 2 elements, and of so many as there are devices.
SMALL = {"agg_small_grads_max_bytes": 40, "agg_small_grads_max_group": 3}
STAGES: dict[str, tuple[dict[str, Any], tuple[tf.DType, ...]]] = {
    "off": ({}, (tf.float32, tf.bfloat16)),
    "small": (SMALL, (tf.float32, tf.float16)),
    "3-packs": ({"gradient_repacking": 3}, (tf.float32,)),
    "bfloat16": ({"compact_dtype": "bfloat16"}, (tf.float32, tf.bfloat16)),
    "float16": ({"compact_dtype": "float16"}, (tf.float32, tf.float16)),
    "3-packs-of-float16": (
        {**SMALL, "gradient_repacking": 3, "compact_dtype": "float16"},
        (tf.float32, tf.float16),
    ),
    "buckets-of-float16": (
        {
            "gradient_bucket_bytes": 1000,
            "compact_dtype": "float16",
            "variable_consistency": "relaxed",
        },
        (tf.float32, tf.float16),
    ),
    "relaxed": ({"variable_consistency": "relaxed"}, (tf.float32, tf.bfloat16)),
    "everything": (
        {
            **SMALL,
            "gradient_repacking": 3,
            "compact_dtype": "bfloat16",
            "variable_consistency": "relaxed",
        },
        (tf.float32, tf.bfloat16),
    ),
}
STAGED = ("tree", "hierarchical_copy", "collective/rechd", "copy:1K:pscpu#2:64K:xring", "psgpu")


def reducer(spec: str, count: int, share_memory: bool = True) -> AllReducer:
    devices = DEVICES[:count]
    half = -(-count // 2)
    groups = [group for group in (devices[:half], devices[half:]) if group]
    context = ReduceContext(devices=devices, cpu_devices=devices, share_memory=share_memory)
    return AllReducer(all_reduce.parse_all_reduce_spec(spec, NAMES), context, groups)


def refusal(spec: str, count: int) -> str | None:
    """Why a spec will not work with so many logical CPU devices."""
    try:
        reducer(spec, count)
    except FlagError as error:
        if isinstance(error.__cause__, UsageError):
            raise  # Not registered: no reason of an algorithm's own.
        return error.reason
    return None


def working(specs: Iterable[str], count: int) -> list[str]:
    """What an algorithm refuses is left out, by its own word."""
    return [spec for spec in specs if refusal(spec, count) is None]


@functools.cache
def inputs(
    count: int, dtypes: tuple[tf.DType, ...], long: tuple[tuple[int, ...], ...] = LONG
) -> list[list[np.ndarray]]:
    """Integers by tower and tensor, small enough for sums to be exact in every dtype.

    The type decides where long tensors are cut and nothing else, so short ones of all sizes
    are there in the first dtype only.
    """
    rng = np.random.default_rng(count)
    lengths = [(length,) for length in sorted({0, 1, 2, count - 1, count, count + 1})]
    every = [*lengths, (), (3, 5, 7), *long]
    some = [(count + 1,), (), *long]
    return [
        [
            rng.integers(-15, 16, size=shape).astype(dtype.as_numpy_dtype)
            for dtype in dtypes
            for shape in (every if dtype == dtypes[0] else some)
        ]
        for _ in range(count)
    ]


@pytest.fixture
def reduce_all(call_whole) -> Callable[..., dict[str, list[list[tf.Tensor]]]]:
    """reduce_all(specs, count, values, share_memory): sums by spec, all in one traced function."""

    def call(
        specs: Iterable[str], count: int, values: list[list[np.ndarray]], share_memory: bool
    ) -> dict[str, list[list[tf.Tensor]]]:
        reducers = {spec: ByTower(reducer(spec, count, share_memory)) for spec in specs}
        step = tf.function(
            lambda tensors: {spec: reduce(tensors) for spec, reduce in reducers.items()},
            autograph=False,
        )
        return call_whole(step, [[tf.constant(value) for value in tower] for tower in values])

    return call


@pytest.fixture
def check(reduce_all) -> Callable[..., None]:
    """check(specs, count, dtypes, share_memory=True): every device gets the exact sum."""

    def sums_are_exact(
        specs: Iterable[str], count: int, dtypes: tuple[tf.DType, ...], share_memory: bool = True
    ) -> None:
        values = inputs(count, dtypes)
        found = reduce_all(specs, count, values, share_memory)
        assert found
        for number, column in enumerate(zip(*values, strict=True)):
            expected = exact_sum(column)
            for spec, sums in found.items():
                for device in range(count):
                    total = sums[device][number].numpy()
                    where = f"{spec}: {column[0].dtype} {column[0].shape} on device {device}"
                    assert total.dtype == column[0].dtype, where
                    whole = total.astype(np.int64)
                    np.testing.assert_array_equal(whole, expected, where, strict=True)

    return sums_are_exact


def exact_sum(column: Iterable[np.ndarray]) -> np.ndarray:
    return np.sum([value.astype(np.int64) for value in column], axis=0)


@pytest.mark.parametrize("count", slow_if([8], COUNTS))
def test_every_device_gets_the_exact_sum(count, check):
    check(working(NAMES, count), count, DTYPES if count == 3 else DTYPES[:1])


# test_devices_agree_to_the_last_bit has two shards.
@pytest.mark.slow
@pytest.mark.parametrize(("specs", "count"), [([*NAMES, *THREE_SHARDS], 3), (NAMES, 8)])
def test_devices_with_memories_of_their_own_get_the_exact_sum(specs, count, check):
    check(working(specs, count), count, DTYPES[:1], share_memory=False)


def levels() -> list[tuple[str, int, bool]]:
    """Each algorithm once as the first level and once as the second."""
    names = working(NAMES, 8)
    pairs = map("/".join, zip(names, [*names[3:], *names[:3]], strict=True))
    specs = [*pairs, "pscpu/pscpu", "copy/xring#2", "copy:1K:pscpu#2:64K:xring"]
    return [(s, (3, 8, 4)[n % 3], n % 2 == 0) for n, s in enumerate(specs)]


@pytest.mark.parametrize(
    ("spec", "count", "share_memory"), slow_if(lambda case: case[1] == 8, levels())
)
def test_every_device_gets_the_exact_sum_in_levels(spec, count, share_memory, check):
    check([spec], count, DTYPES[:2] if share_memory else DTYPES[:1], share_memory)


def staged_cases() -> list[object]:
    """Stages with two specs and two numbers of devices each, a mean and a sum."""
    result: list[tuple[Any, ...]] = []
    for n, stages in enumerate(STAGES):
        result.append((STAGED[n % 5], stages, COUNTS[1:][n % 4], "mean", n % 2 == 0))
        result.append((STAGED[(n + 2) % 5], stages, COUNTS[(n + 4) % 5], "sum", n % 2 == 1))
    return result


@pytest.mark.parametrize(
    ("spec", "stages", "count", "reduction", "share_memory"),
    slow_if(lambda case: case[2] > (3 if case[3] == "sum" else 4), staged_cases()),
)
def test_every_device_gets_the_exact_result_through_all_stages(
    spec, stages, count, reduction, share_memory, call_whole
):
    options, dtypes = STAGES[stages]
    aggregation = AggregationSpec(**options)
    scale = None if reduction == "sum" or count == 1 else 1 / count
    made = make_stages(aggregation, DEVICES[:count], scale)
    reduce = reducer(spec, count, share_memory)

    @tf.function(autograph=False)
    def step(tensors):
        return run_through(made, tensors, reduce)

    first = inputs(count, dtypes, LONG[:1])
    if scale is not None and aggregation.compact_dtype == "float16":
        # Each is at most 61440, which float16 holds; sums would be infinite.
        first = [[value * value.dtype.type(4096) for value in own] for own in first]
    second = [[-value[::-1] if value.ndim else -value for value in own] for own in first]
    # Zeros are what a relaxed first step hands out.
    zeros = [[np.zeros_like(value) for value in own] for own in first]
    is_late = aggregation.applies_gradients_late
    calls = [(first, zeros), (second, first)] if is_late else [(first, first)]
    for given, due in calls:
        results = call_whole(step, [[tf.constant(value) for value in own] for own in given])
        assert len(results) == count
        for number, column in enumerate(zip(*due, strict=True)):
            dtype = np.float32 if aggregation.compact_dtype else column[0].dtype
            expected = exact_sum(column).astype(dtype)
            if scale is not None:
                # One rounding of the exact sum; none if `count` is a power of two.
                expected = expected * np.asarray(scale, dtype)
            for device, own in enumerate(results):
                result = own[number].numpy()
                where = f"{column[0].dtype} {column[0].shape} on device {device}"
                assert result.dtype == expected.dtype, where
                np.testing.assert_array_equal(result, expected, where, strict=True)


def test_devices_agree_to_the_last_bit(reduce_all):
    count = 5
    rng = np.random.default_rng(5)
    values = [[rng.standard_normal(LONG[0]).astype(np.float32)] for _ in range(count)]
    stacked = np.concatenate(values).astype(np.float64)
    # Each of at most n-1 additions rounds a partial sum by half a unit in its last place.
    bound = (count - 1) * np.finfo(np.float32).eps / 2 * np.abs(stacked).sum(0)
    specs = working((*NAMES, *TWO_SHARDS), count)
    for spec, found in reduce_all(specs, count, values, share_memory=False).items():
        first, *others = (total.numpy() for (total,) in found)
        for total in others:
            np.testing.assert_array_equal(total.view(np.int32), first.view(np.int32), spec)
        assert np.all(np.abs(first - stacked.sum(0)) <= bound * 1.001), spec


@pytest.mark.parametrize("name", NAMES)
def test_an_algorithm_takes_every_number_of_devices_or_none(name):
    reasons = [refusal(name, count) for count in COUNTS if count > 1]
    assert len(set(map(bool, reasons))) == 1, reasons


@pytest.mark.parametrize(
    "name", ["copy", "hierarchical_copy", "psgpu", "pscpu", "rechd", "tree", "xring"]
)
def test_what_needs_no_library_works_on_cpus(name):
    assert refusal(name, 7) is None
