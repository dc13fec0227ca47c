"""Eight logical CPU devices for every test, made before TensorFlow initialises."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import pytest
import tensorflow as tf

LOGICAL_DEVICES = 8

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * LOGICAL_DEVICES,
)
tf.config.set_soft_device_placement(False)


@pytest.fixture(scope="session")
def cpu_devices() -> tuple[str, ...]:
    """Full names of the eight logical CPU devices, as concrete functions report them."""
    return tuple(f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(LOGICAL_DEVICES))
