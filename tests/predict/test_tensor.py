"""The model cuts tensors as the algorithms do."""

import math

import pytest

from cnnbench.predict.tensor import Tensor
from cnnbench.variable_mgr.all_reduce.chunks import chunk_sizes


@pytest.mark.parametrize("itemsize", [2, 4, 8])
@pytest.mark.parametrize("most", [1, 2, 3, 7, 8, 64])
@pytest.mark.parametrize("elements", [0, 1, 16, 1000, 8191, 8192, 8193, 20_000, 40_001, 10**6])
def test_chunks_are_those_of_the_algorithms(elements, most, itemsize):
    real = chunk_sizes(elements, most, itemsize)
    cut = Tensor(elements, itemsize).cut(most)
    assert cut.count == len(real)
    assert cut.bytes == real[0] * itemsize


def test_bytes():
    assert Tensor(10, 2).bytes == 20
    assert Tensor(16, 4).splits_in_rows
    assert not Tensor(17, 4).splits_in_rows


def test_many_devices_do_not_make_chunks_below_16_kib():
    cut = Tensor(1 << 20).cut(16384)
    assert cut.bytes >= 16 * 1024
    assert cut.count == math.ceil((4 << 20) / cut.bytes)
