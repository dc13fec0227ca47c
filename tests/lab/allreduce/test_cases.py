"""The tensors that --sizes names; tests/cli/test_refusals.py has what it refuses."""

import pytest

from cnnbench.lab.allreduce.plan import Workload, parse_sizes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4K", ["4096"]),
        ("12", ["12"]),
        ("4K, 1M", ["4096", "1048576"]),
        ("1K:256M:x4", [str(1024 * 4**i) for i in range(10)]),
        ("4:100:x3", ["4", "12", "36"]),
        ("64K:256K:+64K", ["65536", "131072", "196608", "262144"]),
        ("64K:200K:+64K", ["65536", "131072", "196608"]),
        ("8:8:x2", ["8"]),
        ("4K*1000", ["4096*1000"]),
        ("1K:4K:x2*3", ["1024*3", "2048*3", "4096*3"]),
        ("4K,4K,1K:4K:x4", ["4096", "1024"]),
        ("4K*1", ["4096"]),
    ],
)
def test_sizes(text, expected):
    assert [workload.name for workload in parse_sizes(text, "float32")] == expected


def test_a_workload_counts_elements():
    assert parse_sizes("4K*3", "float32") == (Workload("4096*3", ((1024,),) * 3),)
    assert parse_sizes("4K*3", "bfloat16") == (Workload("4096*3", ((2048,),) * 3),)
    assert Workload("m", ((2, 3), (), (5,))).elements == 12
    assert parse_sizes("6", "float16") == (Workload("6", ((3,),)),)
