"""Eight logical CPU devices for every test, made before TensorFlow initialises."""

from __future__ import annotations

import itertools
import os
from datetime import datetime, timedelta, timezone

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import pytest
import tensorflow as tf

from cnnbench.allreduce.record import AllReduceRecord, Devices, Point
from cnnbench.allreduce.ways import Packing
from cnnbench.params.allreduce import AllReduceParams
from cnnbench.record import ErrorInfo
from cnnbench.record_codec import encode

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


class Reductions:
    """Makes all-reduce measurements that never ran: of xring on 8 MB and four CPU devices.

    Each has another run_id and starts a minute later than the one before.
    """

    def __init__(self, environment=None):
        self._numbers = itertools.count()
        self._environment = {"hostname": "box", "cpu_model": "Fast CPU", **(environment or {})}

    @staticmethod
    def point(gigabytes_per_sec=6.0, *, bytes=8_000_000, devices=4, **parts):
        """A row of the bus bandwidth given; None for one without times."""
        # S / t * 2(n-1)/n = bandwidth
        seconds = ()
        if gigabytes_per_sec is not None:
            seconds = (bytes * 2 * (devices - 1) / devices / (gigabytes_per_sec * 1e9),) * 3
        values = {
            "spec": "xring",
            "packing": Packing(),
            "workload": str(bytes),
            "dtype": "float32",
            "bytes": bytes,
            "tensors": 1,
            "elements": bytes // 4,
            "devices": devices,
            "seconds": seconds,
            "checked": bytes // 2,
            "build_seconds": 0.5,
        }
        return Point(**{**values, **parts})

    def __call__(self, *points, flags=None, environment=None, error=None, status=None, **parts):
        """A process that measured some rows: points, or their bus bandwidths in GB/s.

        Args:
          *points: rows; a number is a row of that bandwidth.
          flags: to replace.
          environment: facts to replace.
          error: (type, message) of a failed process.
          status: "ok" or "failed" by itself.
          **parts: fields of the record to replace.
        """
        number = next(self._numbers)
        start = datetime(2026, 11, 20, tzinfo=timezone.utc) + timedelta(minutes=number)
        rows = [p if isinstance(p, Point) else self.point(p) for p in points]
        config = encode(AllReduceParams(device="cpu", num_gpus=(4,), num_batches=3).as_dict())
        config |= {"sizes": sorted({row.workload for row in rows}), **(flags or {})}
        values = {
            "run_id": f"reductions{number}",
            "started_at": start.isoformat(),
            "status": status or ("failed" if error else "ok"),
            "error": ErrorInfo(type=error[0], message=error[1]) if error else None,
            "command": ("cnnbench", "allreduce"),
            "config": config,
            "placement": Devices(device="cpu", devices=tuple(f"/device:CPU:{i}" for i in range(4))),
            "points": tuple(rows),
            "environment": {**self._environment, **(environment or {})},
        }
        return AllReduceRecord(**{**values, **parts})

    def of(self, *bandwidths, **parts):
        """A process with a single row for each bus bandwidth."""
        return [self(bandwidth, **parts) for bandwidth in bandwidths]


@pytest.fixture
def reductions():
    return Reductions()
