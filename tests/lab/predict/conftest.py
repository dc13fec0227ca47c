"""Measurement files as `cnnbench allreduce --result_json` writes them."""

import json

import pytest

from cnnbench.lab.predict.host import RATES, Host
from cnnbench.lab.predict.workload import Tensor
from cnnbench.records.codec import encode
from cnnbench.variable_mgr.aggregation.spec import Packing
from cnnbench.variable_mgr.all_reduce.spec import parse_all_reduce_spec

SPECS = ("copy", "xring", "xring#2", "rechd", "tree", "pscpu#2", "collective")
# Two sizes of every regime, so that one can be predicted from the other.
SIZES = (4096, 65536, 1 << 20, 1 << 24, 1 << 26, 1 << 28)
DEVICES = (2, 3, 4, 8)

TRUTH = Host(
    dict(zip(RATES, (1e-4, 2e-5, 3e-6, 5e-6, 2e-11, 6e-11, 1e-10, 5e-5, 1e-5, 8e-11), strict=True)),
    cache_bytes=2.0**24,
)
"""A machine of which everything is known."""


def make_point(spec, elements, devices, seconds, tensors=1, packing=Packing(), **more):  # noqa: B008
    """One point of a measurement file."""
    return {
        "spec": spec,
        "packing": encode(packing),
        "workload": "toy",
        "dtype": "float32",
        "bytes": 4 * elements,
        "tensors": tensors,
        "elements": elements,
        "devices": devices,
        "seconds": seconds,
        "wrong": 0,
        "checked": 1,
        "error": None,
        **more,
    }


def make_document(points, device="cpu", **more):
    """A measurement file's document."""
    return {
        "schema": 1,
        "kind": "allreduce",
        "run_id": "1",
        "started_at": "2026-11-20T00:00:00+00:00",
        "status": "ok",
        "error": None,
        "command": ["cnnbench", "allreduce"],
        "config": {},
        "explicit_flags": [],
        "placement": {"device": device, "devices": []},
        "copies": [],
        "points": points,
        "environment": {},
        **more,
    }


def measured_by(model, noise=None, device="cpu", counts=(1, 16)):
    """What one would measure on a machine that is exactly `model`, times noise."""
    points = []
    for spec in SPECS:
        for size in SIZES:
            for devices in DEVICES:
                for count in counts:
                    tensors = [Tensor(size // 4 // count)] * count
                    seconds = model.seconds(
                        parse_all_reduce_spec(spec), tensors, devices, Packing()
                    )
                    factor = 1.0 if noise is None else float(noise())
                    points.append(
                        make_point(spec, size // 4, devices, [seconds * factor], tensors=count)
                    )
    return make_document(points, device)


@pytest.fixture
def write(tmp_path):
    """Writes a document and returns its path as text."""

    def write(document, name="points.json"):
        path = tmp_path / name
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return str(path)

    return write
