"""Pickles of CIFAR-10: arrays are read, nothing is called, and damage is named.

Tests cnnbench/data/cifar10_files.py.
"""

import os
import pickle
import pickletools

import numpy as np
import pytest

from cnnbench.data import cifar10_files
from cnnbench.data.cifar10_files import unpickle_safely


def integers(data):
    return cifar10_files.resolve_placeholder(unpickle_safely(data))


@pytest.mark.parametrize("protocol", range(6))
def test_arrays_and_containers_of_every_protocol(protocol):
    arrays = [
        np.arange(12, dtype=np.uint8).reshape(3, 4),
        np.arange(6).reshape(2, 3).T,
        np.arange(3, dtype=">i4"),
        np.zeros((0, 3), np.uint8),
        np.int64(-7),
    ]
    plain = {b"names": [b"a.png", b"", "text"], "labels": (1, 2.5, None)}
    loaded = unpickle_safely(pickle.dumps([arrays, plain], protocol))
    for found, expected in zip(loaded[0], arrays, strict=True):
        array = cifar10_files.resolve_placeholder(found)
        assert array.dtype == expected.dtype
        np.testing.assert_array_equal(array, expected)
    assert loaded[1] == plain


def test_module_names_of_old_numpy():
    old = pickle.dumps(np.arange(3), 2).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    assert b"numpy.core.multiarray" in old
    np.testing.assert_array_equal(integers(old), [0, 1, 2])


def test_python_2_strings_become_bytes():
    assert unpickle_safely(b"(dp0\nS'data'\np1\nS'\\xff\\x00'\np2\ns.") == {b"data": b"\xff\x00"}


class Hostile:
    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    ("protocol", "function"), [*enumerate([os.system, eval, exec, __import__, getattr, open])]
)
def test_nothing_is_called(protocol, function, tmp_path):
    trace = tmp_path / "ran"
    arguments = {os.system: f"touch {trace}", open: str(trace)}
    argument = arguments.get(function, f"open({str(trace)!r}, 'w')")
    data = pickle.dumps(Hostile(function, argument), protocol)
    with pytest.raises(pickle.UnpicklingError, match="is not an array of integers"):
        integers(data)
    assert not trace.exists()


@pytest.mark.parametrize(
    "reference",
    [
        b"cno_such_module\nname\n.",
        b"cnumpy\nndarray.tofile\n.",
        b"cnumpy.core.multiarray\nfromfile\n.",
        b"cnumpy.core.multiarray\n_reconstruct\n.",
        b"c_codecs\nencode\nN}S'__defaults__'\nNs\x86b.",
    ],
)
def test_names_are_not_looked_up(reference):
    with pytest.raises(pickle.UnpicklingError, match="is not an array of integers"):
        integers(reference)


@pytest.mark.parametrize(
    "data", [b"", b"\x80", b"not a pickle", b"\x80\x02}q\x00", b"r\xff\xff\xff\x7f."]
)
def test_damage_is_an_unpickling_error(data):
    with pytest.raises(pickle.UnpicklingError):
        unpickle_safely(data)


def test_the_reason_of_damage_is_that_of_the_unpickler():
    with pytest.raises(pickle.UnpicklingError, match="exhausted before seeing STOP"):
        unpickle_safely(b"\x80\x02}q\x00")


ARRAY = pickle.dumps(np.frombuffer(b"abcdef", np.uint8).reshape(2, 3), 2)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b"abcdef", b"abcde", "."),
        (b"K\x02K\x03\x86", b"K\x02K\x02\x86", r"an array of shape \(2, 2\) has 6 bytes"),
        (b"K\x02K\x03\x86", b"J\xfe\xff\xff\xffJ\xfd\xff\xff\xff\x86", "has 6 bytes"),
        (b"K\x02K\x03\x86", b"\x8a\x08" + b"\x00" * 5 + b"\x01\x00\x00K\x03\x86", "has 6 bytes"),
        (b"K\x02K\x03\x86", b"X\x01\x00\x00\x00aK\x03\x86", "shape"),
        (b"u1", b"u3", "arrays of type '.u3'"),
        (b"X\x01\x00\x00\x00|", b"X\x01\x00\x00\x00?", r"arrays of type '\?u1'"),
        (b"cnumpy\ndtype\n", b"cnumpy\nndarray\n", "an array has no dtype"),
    ],
)
def test_states_that_fit_no_array_of_integers_are_refused(old, new, words):
    assert old in ARRAY, pickletools.dis(ARRAY)
    with pytest.raises(pickle.UnpicklingError, match=words):
        integers(ARRAY.replace(old, new))


@pytest.mark.parametrize("dtype", ["O", "M8[s]", "V3", "U2", "f8", [("a", "u1")]])
def test_arrays_of_anything_else_are_refused(dtype):
    with pytest.raises(pickle.UnpicklingError, match=r"arrays? of "):
        integers(pickle.dumps(np.zeros(2, dtype), 2))
