import pytest

from cnnbench.base.text.numbers import parse_bytes
from cnnbench.errors import FlagError
from cnnbench.lab.allreduce.cases import Workload, parse_sizes


def sizes(text, dtype="float32"):
    return [workload.name for workload in parse_sizes(text, dtype)]


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
    assert sizes(text) == expected


def test_a_workload_counts_elements():
    assert parse_sizes("4K*3", "float32") == (Workload("4096*3", ((1024,),) * 3),)
    assert parse_sizes("4K*3", "bfloat16") == (Workload("4096*3", ((2048,),) * 3),)
    assert parse_sizes("4K*3", "float32")[0].elements == 3072
    assert Workload("m", ((2, 3), (), (5,))).elements == 12


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "'': must be bytes"),
        ("4Q", "'4Q': must be bytes"),
        ("-4", "'-4': must be bytes"),
        ("4K,,8K", "'': must be bytes"),
        ("1K:4K", "'1K:4K': a range needs three parts"),
        ("4K:1K:x2", "must not end below its beginning"),
        ("1K:4K:2", "must end in a factor of 2 or more (x4) or a step (+64K)"),
        ("1K:4K:x1", "must end in a factor"),
        ("1K:4K:+0", "'0': must be bytes"),
        ("4K*0", "'4K*0': * must be followed by a number of tensors"),
        ("4K*2*3", "* must be followed"),
        ("4:100M:+4", "is more than 1000 sizes"),
        ("6", "6 bytes are no whole number of float32 elements of 4 bytes"),
        ("4:16:+2", "6 bytes are no whole number"),
    ],
)
def test_refused(text, reason):
    with pytest.raises(FlagError) as caught:
        parse_sizes(text, "float32")
    message = str(caught.value)
    assert message.startswith(f"--sizes={text}: ")
    assert reason in message
    assert "\n" not in message


def test_two_bytes_are_enough_for_16_bits():
    assert sizes("6", "float16") == ["6"]
    with pytest.raises(FlagError, match="no whole number of bfloat16 elements of 2 bytes"):
        parse_sizes("5", "bfloat16")


@pytest.mark.parametrize(
    ("text", "value"), [("0", 0), ("64K", 65536), ("1g", 2**30), ("x", None), ("", None)]
)
def test_bytes(text, value):
    assert parse_bytes(text) == value
