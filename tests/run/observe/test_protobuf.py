"""The reader of the wire format, against messages that TensorFlow's own classes wrote."""

from __future__ import annotations

import pytest
import tensorflow as tf

from cnnbench.run.observe.protobuf import double, fields, parts, signed


def _split(numbers):
    """The varints of a packed list, one by one."""
    one = b""
    for byte in numbers:
        one += bytes([byte])
        if byte < 0x80:
            yield one
            one = b""


def test_integers_of_an_example():
    values = [1, 300, -1, 2**63 - 1]
    message = tf.train.Feature(int64_list=tf.train.Int64List(value=values)).SerializeToString()
    (packed,) = parts(message, 3)
    (numbers,) = parts(packed, 1)
    # A packed list is its numbers without keys.
    single = b"".join(b"\x08" + one for one in _split(numbers))
    assert [signed(value) for _, value in fields(single)] == values


def test_fixed_width_numbers():
    # Field 1, 64 bits: 1.5; field 2, 32 bits: 7.
    message = b"\x09\x00\x00\x00\x00\x00\x00\xf8\x3f\x15\x07\x00\x00\x00"
    (first, second) = fields(message)
    assert (first[0], double(first[1])) == (1, 1.5)
    assert second == (2, 7)


@pytest.mark.parametrize("message", [b"\x0a\x05ab", b"\x08\x80", b"\x08", b"\x09\x00", b"\x0b"])
def test_a_torn_message_is_refused(message):
    with pytest.raises(ValueError, match=r"cut off|wire type"):
        list(fields(message))
