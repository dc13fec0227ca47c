"""Settings of the stages as text and by flags, and groups of tensors; stages are in aggregation."""

from __future__ import annotations

import pytest

from cnnbench.variable_mgr.packing import (
    AggregationSpec,
    Packing,
    buffer_sizes,
    group_into_buckets,
    group_small_tensors,
)


@pytest.mark.parametrize(
    ("fields", "text", "late"),
    [
        ({}, "-", False),
        ({"agg_small_grads_max_group": 3}, "-", False),
        ({"agg_small_grads_max_bytes": 64}, "small64x10", False),
        ({"gradient_bucket_bytes": 7}, "buckets7", False),
        ({"gradient_repacking": 2}, "packs2", False),
        ({"compact_dtype": "bfloat16"}, "bfloat16", False),
        ({"allreduce_merge_scope": 1}, "-", False),
        ({"allreduce_merge_scope": 2}, "scope2", False),
        ({"variable_consistency": "relaxed"}, "relaxed", True),
        (
            {
                "variable_consistency": "relaxed",
                "allreduce_merge_scope": 4,
                "compact_dtype": "float16",
                "gradient_repacking": 8,
                "gradient_bucket_bytes": 16,
                "agg_small_grads_max_bytes": 32,
                "agg_small_grads_max_group": 5,
            },
            "small32x5+buckets16+packs8+float16+scope4+relaxed",
            True,
        ),
    ],
)
def test_a_packing_as_text_and_what_it_does(fields, text, late):
    packing = Packing(**fields)
    assert str(packing) == text
    assert packing.applies_gradients_late is late


def test_a_packing_takes_its_own_flags_and_changes_go_before_flags():
    flags = {"gradient_repacking": 2, "compact_dtype": "float16", "batch_size": 64}
    made = Packing.from_flags(flags, gradient_repacking=3)
    assert made == Packing(gradient_repacking=3, compact_dtype="float16")
    whole = AggregationSpec.from_flags(flags, group_size=2)
    assert whole == AggregationSpec(gradient_repacking=2, compact_dtype="float16", group_size=2)
    assert str(whole.all_reduce) == "copy"


@pytest.mark.parametrize(
    ("elements", "buffers", "line", "expected"),
    [
        (100, 1, 16, [100]),
        (100, 3, 16, [32, 32, 36]),
        (96, 3, 16, [32, 32, 32]),
        (47, 3, 16, [15, 15, 17]),  # less than a line each
        (48, 3, 16, [16, 16, 16]),
        (2, 3, 16, [0, 0, 2]),
        (0, 2, 16, [0, 0]),
    ],
)
def test_elements_are_shared_out_in_whole_lines(elements, buffers, line, expected):
    assert buffer_sizes(elements, buffers, line) == expected


@pytest.mark.parametrize(
    ("tensors", "most", "expected"),
    [
        ([], 10, []),
        ([("a", 4), ("a", 6), ("a", 4)], 10, [[0], [1, 2]]),
        ([("a", 4), ("a", 6), ("a", 5)], 10, [[0, 1], [2]]),
        ([("a", 1), ("b", 1), ("b", 1), ("a", 1)], 10, [[0], [1, 2], [3]]),
        ([("a", 1), ("a", 99), ("a", 1)], 10, [[0], [1], [2]]),
        ([("a", 0), ("a", 8), ("a", 0), ("a", 8)], 8, [[0, 1], [2, 3]]),
        ([("a", 2), ("a", 2), ("b", 9), ("a", 2)], 4, [[0, 1], [2], [3]]),
    ],
)
def test_buckets_are_filled_from_the_end(tensors, most, expected):
    assert group_into_buckets(tensors, most) == expected


@pytest.mark.parametrize(
    ("small", "most", "expected"),
    [
        ("", 2, []),
        ("sss", 2, [[0, 1], [2]]),
        ("sss", 3, [[0, 1, 2]]),
        ("LLs", 3, [[0], [1], [2]]),
        ("sLss", 3, [[0], [1], [2, 3]]),
        ("ss", 1, [[0], [1]]),
    ],
)
def test_runs_of_small_tensors_are_groups(small, most, expected):
    assert group_small_tensors((size == "s" for size in small), most) == expected
