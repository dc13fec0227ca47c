import os
import pickle

import numpy as np
import pytest

from cnnbench.data import safe_pickle


@pytest.mark.parametrize("protocol", range(2, 6))
def test_arrays_and_containers_of_every_protocol(protocol):
    value = {
        b"data": np.arange(12, dtype=np.uint8).reshape(3, 4),
        b"labels": [1, np.int64(2), 3],
        b"names": [b"a.png", b"", "text"],
    }
    loaded = safe_pickle.loads(pickle.dumps(value, protocol))
    np.testing.assert_array_equal(loaded[b"data"], value[b"data"])
    assert loaded[b"labels"] == [1, 2, 3]
    assert loaded[b"names"] == value[b"names"]


def test_module_names_of_old_numpy():
    old = pickle.dumps(np.arange(3), 2).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    assert b"numpy.core.multiarray" in old
    np.testing.assert_array_equal(safe_pickle.loads(old), [0, 1, 2])


def test_python_2_strings_become_bytes():
    assert safe_pickle.loads(b"(dp0\nS'data'\np1\nS'\\xff\\x00'\np2\ns.") == {b"data": b"\xff\x00"}


class Hostile:
    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("function", [os.system, eval, exec, __import__, getattr, open])
def test_nothing_else_is_even_looked_up(protocol, function, tmp_path):
    trace = tmp_path / "ran"
    argument = {os.system: f"touch {trace}", open: str(trace)}.get(
        function, f"open({str(trace)!r}, 'w')"
    )
    data = pickle.dumps({b"data": Hostile(function, argument)}, protocol)
    with pytest.raises(pickle.UnpicklingError, match="which is not data"):
        safe_pickle.loads(data)
    assert not trace.exists()


@pytest.mark.parametrize(
    "reference",
    [b"cnumpy\nsave\n.", b"cnumpy\nndarray.tofile\n.", b"cnumpy.core.multiarray\nfromfile\n."],
)
def test_other_numpy_functions_are_refused(reference):
    with pytest.raises(pickle.UnpicklingError, match="which is not data"):
        safe_pickle.loads(reference)


def test_odd_codecs_are_refused():
    data = pickle.dumps(Hostile(__import__("_codecs").encode, "x", "rot13"), 2)
    with pytest.raises(pickle.UnpicklingError, match="rot13"):
        safe_pickle.loads(data)


@pytest.mark.parametrize("data", [b"", b"\x80", b"not a pickle", b"\x80\x02}q\x00"])
def test_damage_is_an_unpickling_error(data):
    with pytest.raises(pickle.UnpicklingError):
        safe_pickle.loads(data)


def test_text_and_other_byte_orders():
    for array in (np.array([b"ab", b"c"]), np.array(["x"]), np.arange(3, dtype=">i4"), np.eye(2).T):
        for protocol in range(6):
            loaded = safe_pickle.loads(pickle.dumps(array, protocol))
            assert loaded.dtype.newbyteorder("=") == array.dtype.newbyteorder("=")
            np.testing.assert_array_equal(loaded, array)


STATES = (
    (1, (2,), safe_pickle._DType("u1"), False, b"abc"),
    (1, (-1, -3), safe_pickle._DType("u1"), False, b"abc"),
    (1, (2**40,), safe_pickle._DType("u1"), False, b""),
    (1, (3,), np.dtype("u1"), False, b"abc"),
    (1, (1,), safe_pickle._DType("u1"), False, [1]),
    (),
)


@pytest.mark.parametrize("state", STATES)
def test_a_state_that_does_not_fit_is_refused(state):
    array = safe_pickle._reconstruct(safe_pickle._Array, (0,), b"b")
    with pytest.raises((pickle.UnpicklingError, TypeError, AttributeError, ValueError)):
        array.__setstate__(state)
    assert array.size == 0


@pytest.mark.parametrize("dtype", ["O", "M8[s]", "V3", [("a", "u1")]])
def test_arrays_of_anything_else_are_refused(dtype):
    with pytest.raises(pickle.UnpicklingError, match="an array of"):
        safe_pickle.loads(pickle.dumps(np.zeros(2, dtype), 2))


def test_the_state_of_a_function_cannot_be_set():
    data = b"c_codecs\nencode\nN}S'__defaults__'\nNs\x86b."
    with pytest.raises(pickle.UnpicklingError, match="state of a function"):
        safe_pickle.loads(data)
