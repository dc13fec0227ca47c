"""The grammar of --devices."""

import pytest

from cnnbench.errors import FlagError
from cnnbench.predict.device_counts import parse_device_counts


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("8", (8,)),
        ("8,12,16", (8, 12, 16)),
        ("8..64", (8, 16, 32, 64)),
        ("3..20", (3, 6, 12)),
        ("16, 8..32 ,1", (1, 8, 16, 32)),
        ("8..16384", tuple(2**k for k in range(3, 15))),
    ],
)
def test_counts(text, counts):
    assert parse_device_counts(text) == counts


@pytest.mark.parametrize("text", ["", "8..", "..8", "a", "8,,9", "0", "16..8", "-1", "8x"])
def test_errors_name_flag_and_value(text):
    with pytest.raises(FlagError) as error:
        parse_device_counts(text)
    assert str(error.value).startswith(f"--devices={text}: ")
