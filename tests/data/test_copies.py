"""Nests of tensors copied to a device."""

from __future__ import annotations

import tensorflow as tf

from cnnbench.data.copies import copied_to


def test_a_nest_is_copied_in_one_call(cpu_devices: tuple[str, ...]) -> None:
    with tf.device(cpu_devices[2]):
        nest = {"loss": tf.constant(1.0) * 2.0, "none": None, "more": (tf.constant(3) > 2,)}
    for device in cpu_devices[:2]:
        found = copied_to(device, nest)(nest)
        assert found["none"] is None
        assert {one.backing_device for one in (found["loss"], *found["more"])} == {device}
        assert (float(found["loss"]), bool(found["more"][0])) == (2.0, True)


def test_shapes_may_change(cpu_devices: tuple[str, ...]) -> None:
    copied = copied_to(cpu_devices[1], (tf.ones([2]), None))
    for rows in (1, 3):
        found, none = copied((tf.ones([rows, 2]), None))
        assert (found.shape, found.backing_device, none) == ([rows, 2], cpu_devices[1], None)
