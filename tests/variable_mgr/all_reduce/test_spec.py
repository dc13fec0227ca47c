from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cnnbench.errors import FlagError
from cnnbench.variable_mgr.all_reduce import (
    AlgorithmSpec,
    AllReduceSpec,
    SizeRange,
    parse_all_reduce_spec,
)
from cnnbench.variable_mgr.all_reduce.registry import find, names

KNOWN = ("copy", "nccl", "pscpu", "xring")


def flat(spec: AllReduceSpec) -> list[tuple[str, int, int | None]]:
    return [("/".join(r.algorithm.levels), r.algorithm.shards, r.limit) for r in spec.ranges]


@pytest.mark.parametrize(
    ("text", "ranges"),
    [
        ("copy", [("copy", 1, None)]),
        ("xring#4", [("xring", 4, None)]),
        ("nccl/xring", [("nccl/xring", 1, None)]),
        ("pscpu/pscpu#2", [("pscpu/pscpu", 2, None)]),
        ("copy:1:xring", [("copy", 1, 1), ("xring", 1, None)]),
        ("copy:2048:xring", [("copy", 1, 2048), ("xring", 1, None)]),
        (
            "pscpu:2k:pscpu#2:64K:xring",
            [("pscpu", 1, 2048), ("pscpu", 2, 65536), ("xring", 1, None)],
        ),
        (
            "copy:1K:copy:1m:copy:1G:copy:1t:nccl/xring#3",
            [("copy", 1, 1024**power) for power in (1, 2, 3, 4)] + [("nccl/xring", 3, None)],
        ),
        ("copy:1023:copy:1K:copy", [("copy", 1, 1023), ("copy", 1, 1024), ("copy", 1, None)]),
        ("copy:007:copy#08", [("copy", 1, 7), ("copy", 8, None)]),
    ],
)
def test_valid_specs(text, ranges):
    assert flat(parse_all_reduce_spec(text, KNOWN)) == ranges


@pytest.mark.parametrize(
    ("text", "character", "piece", "reason"),
    [
        ("", 1, "", "must be an algorithm; a spec is algorithm[:limit:algorithm]"),
        ("warp", 1, "warp", "there is no algorithm 'warp'; must be one of copy, nccl, pscpu"),
        ("nccl/", 1, "nccl/", "must be an algorithm"),
        ("nccl/xring/copy", 1, "nccl/xring/copy", "must be an algorithm"),
        ("xring#", 1, "xring#", "after # write the number of shards"),
        ("xring#0", 1, "xring#0", "after # write the number of shards"),
        ("xring#٣", 1, "xring#٣", "after # write the number of shards"),
        ("nccl#2/xring", 1, "nccl#2/xring", "after # write the number of shards"),
        ("copy:2K", 6, "2K", "a limit must be followed by the algorithm for larger tensors"),
        ("copy:2K:xring:4K", 15, "4K", "a limit must be followed by the algorithm"),
        ("copy:2K:", 9, "", "must be an algorithm"),
        ("copy::xring", 6, "", "must be a limit in bytes"),
        ("copy:0K:xring", 6, "0K", "must be a limit in bytes, 1 or more"),
        ("copy:2P:xring", 6, "2P", "must be a limit in bytes, 1 or more, with an optional K, M"),
        ("copy: 2K:xring", 6, " 2K", "must be a limit in bytes"),
        ("copy:xring:2K", 6, "xring", "must be a limit in bytes"),
        ("copy:2K:copy:2K:xring", 14, "2K", "limits must increase, but the previous limit is 2K"),
        ("copy:1M:copy:1025K:copy:2K:copy", 25, "2K", "limits must increase, but .* 1025K"),
    ],
)
def test_invalid_specs_are_pointed_at(text, character, piece, reason):
    with pytest.raises(FlagError, match=reason.replace("[", r"\[")) as caught:
        parse_all_reduce_spec(text, KNOWN)
    assert caught.value.flag == "all_reduce_spec"
    assert caught.value.value == text
    assert caught.value.reason.startswith(f"character {character}, {piece!r}: ")
    assert text[character - 1 :].startswith(piece)
    assert "\n" not in str(caught.value)


def test_any_name_is_taken_where_none_are_known():
    assert flat(parse_all_reduce_spec("warp/weft#2")) == [("warp/weft", 2, None)]


@pytest.mark.parametrize(
    ("text", "shortest"),
    [
        ("copy#1", "copy"),
        ("copy:2048:xring", "copy:2K:xring"),
        ("copy:1024K:xring", "copy:1M:xring"),
        ("copy:1500k:xring", "copy:1500K:xring"),
        ("copy:1025:xring#02", "copy:1025:xring#2"),
    ],
)
def test_specs_are_written_in_their_shortest_form(text, shortest):
    assert str(parse_all_reduce_spec(text)) == shortest


algorithms = st.builds(
    AlgorithmSpec,
    st.lists(st.text("abyz_09", min_size=1, max_size=8), min_size=1, max_size=2).map(tuple),
    st.integers(1, 10**9 - 1),
)
limits = st.one_of(
    st.integers(1, 10**15 - 1),
    st.builds(lambda count, unit: count * 1024**unit, st.integers(1, 10**6), st.integers(1, 4)),
)


@st.composite
def specs(draw) -> AllReduceSpec:
    rising = sorted(draw(st.sets(limits, max_size=5)))
    return AllReduceSpec(tuple(SizeRange(draw(algorithms), limit) for limit in [*rising, None]))


@given(specs())
def test_what_is_written_is_read_again(spec):
    assert parse_all_reduce_spec(str(spec)) == spec


@given(st.text(alphabet="copyxring:/#0129KMT -\n", max_size=30) | st.text(max_size=12))
def test_any_text_is_a_spec_or_an_error_of_use(text):
    try:
        spec = parse_all_reduce_spec(text)
    except FlagError:
        return
    assert parse_all_reduce_spec(str(spec)) == spec


@given(specs(), st.integers(0, 2**62))
def test_a_size_is_in_the_first_range_whose_limit_it_keeps(spec, size):
    fitting = [i for i, part in enumerate(spec.ranges) if part.limit is None or size <= part.limit]
    assert spec.range_index(size) == fitting[0]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("copy:2048:nccl/xring#2:1M:copy", "character 11, 'nccl/xring#2'"),
        ("copy#01:1024k:xring#02", "character 15, 'xring#02'"),
    ],
)
def test_an_error_points_at_its_range_in_what_the_user_wrote(text, place):
    error = parse_all_reduce_spec(text).error(1, "is too slow")
    assert (error.value, error.reason) == (text, f"{place}: is too slow")


def test_an_error_of_a_spec_that_nobody_wrote_points_into_its_shortest_form():
    small = SizeRange(AlgorithmSpec(("copy",)), 2048)
    spec = AllReduceSpec((small, SizeRange(AlgorithmSpec(("xring",), 2))))
    error = spec.error(1, "is too slow")
    assert (error.value, error.reason) == ("copy:2K:xring#2", "character 9, 'xring#2': is too slow")


@pytest.mark.parametrize(
    ("text", "groups", "running"),
    [
        ("copy/xring", ["abcd"], "copy"),
        ("copy/xring#2", ["ab", "cd"], "copy/xring#2"),
        ("copy/xring#2", ["a", "bcd"], "copy/xring#2"),
        ("copy/xring#2", ["a", "b", "c"], "xring#2"),
        ("pscpu#2:4K:copy/xring", ["abcd"], "pscpu#2:4K:copy"),
    ],
)
def test_levels_with_nothing_to_reduce_do_not_run(text, groups, running):
    assert str(parse_all_reduce_spec(text).without_needless_levels(groups)) == running


def test_names_and_levels():
    spec = parse_all_reduce_spec("pscpu#2:4K:nccl/xring")
    assert spec.algorithm_names == {"pscpu", "nccl", "xring"}
    assert spec.has_two_levels
    assert not parse_all_reduce_spec("copy:1:xring").has_two_levels


def test_what_algorithms_declare_holds_for_a_spec_that_has_one():
    both = parse_all_reduce_spec("pscpu:4K:nccl/collective")
    neither = parse_all_reduce_spec("pscpu:4K:unknown")
    declared = sorted(name for name in names() if find(name).across_steps)
    assert "collective" in declared
    assert both.names_across_steps == [one for one in declared if one in both.algorithm_names]
    assert neither.names_across_steps == []
    assert both.reads("communication_hint")
    assert not both.reads("no_such_flag")
    assert not neither.reads("communication_hint")
