"""Links between devices: latency, time per byte, time per byte added; presets with sources.

A message of m bytes takes ``alpha + beta * m`` seconds, and adding m bytes to m others ``gamma *
m`` (Hockney's model, Parallel Computing 20, 1994). A device sends and receives one message at a
time, both directions at once.

Presets: alpha is a step of a reduction from GPU to GPU with its software, beta the usable rate,
gamma the memory traffic of the contemporary GPU. docs/cost_model.md has the sources of all figures.
"""

from __future__ import annotations

import dataclasses

from cnnbench.base.text.messages import nearest
from cnnbench.base.text.numbers import parse_number
from cnnbench.errors import FlagError
from cnnbench.variable_mgr.all_reduce.cost import Link

_GIGA = 1e9
_MICRO = 1e-6

_NVLINK_ALPHA = 3.4 * _MICRO
_PCIE_ALPHA = 5.7 * _MICRO
_RDMA_ALPHA = 14.0 * _MICRO
# Message of 2 KB between hosts: 25.4 us by TCP, 1.7 us by RDMA.
_TCP_ALPHA = _RDMA_ALPHA + (25.4 - 1.7) * _MICRO

# Line rate without headers: MTU of 4096, 4096, 1500 bytes.
_INFINIBAND_PAYLOAD = 4096 / 4122
_ROCE_PAYLOAD = 4096 / 4178
_TCP_PAYLOAD = 1448 / 1538

_V100_MEMORY = 900 * _GIGA
_A100_MEMORY = 1555 * _GIGA
_H100_PCIE_MEMORY = 2000 * _GIGA
_H100_SXM_MEMORY = 3350 * _GIGA

# Bytes that memory moves for one byte added: two read, one written.
_TRAFFIC_OF_ADDING = 3


# Alpha, bandwidth, and that of the memory of the contemporary GPU.
_FIGURES = {
    "pcie3": (_PCIE_ALPHA, 12 * _GIGA, _V100_MEMORY),
    "pcie4": (_PCIE_ALPHA, 24 * _GIGA, _A100_MEMORY),
    "pcie5": (_PCIE_ALPHA, 48 * _GIGA, _H100_PCIE_MEMORY),
    "nvlink2": (_NVLINK_ALPHA, 6 * 20.0 * _GIGA, _V100_MEMORY),
    "nvlink3": (_NVLINK_ALPHA, 12 * 20.0 * _GIGA, _A100_MEMORY),
    "nvlink4": (_NVLINK_ALPHA, 18 * 20.6 * _GIGA, _H100_SXM_MEMORY),
    "tcp25": (_TCP_ALPHA, 25 / 8 * _TCP_PAYLOAD * _GIGA, _V100_MEMORY),
    "tcp100": (_TCP_ALPHA, 100 / 8 * _TCP_PAYLOAD * _GIGA, _V100_MEMORY),
    "tcp200": (_TCP_ALPHA, 200 / 8 * _TCP_PAYLOAD * _GIGA, _A100_MEMORY),
    "tcp400": (_TCP_ALPHA, 400 / 8 * _TCP_PAYLOAD * _GIGA, _H100_SXM_MEMORY),
    "roce25": (_RDMA_ALPHA, 25 / 8 * _ROCE_PAYLOAD * _GIGA, _V100_MEMORY),
    "roce100": (_RDMA_ALPHA, 100 / 8 * _ROCE_PAYLOAD * _GIGA, _V100_MEMORY),
    "roce200": (_RDMA_ALPHA, 200 / 8 * _ROCE_PAYLOAD * _GIGA, _A100_MEMORY),
    "roce400": (_RDMA_ALPHA, 400 / 8 * _ROCE_PAYLOAD * _GIGA, _H100_SXM_MEMORY),
    "edr": (_RDMA_ALPHA, 100 / 8 * _INFINIBAND_PAYLOAD * _GIGA, _V100_MEMORY),
    "hdr": (_RDMA_ALPHA, 200 / 8 * _INFINIBAND_PAYLOAD * _GIGA, _A100_MEMORY),
    "ndr": (_RDMA_ALPHA, 400 / 8 * _INFINIBAND_PAYLOAD * _GIGA, _H100_SXM_MEMORY),
}

PRESETS = {
    name: Link(name, alpha, 1 / bandwidth, _TRAFFIC_OF_ADDING / memory)
    for name, (alpha, bandwidth, memory) in _FIGURES.items()
}
"""Links by name; for NVLink, with an NVSwitch or as many direct links."""

LARGEST_DOMAIN = {"nvlink2": 16, "nvlink3": 16, "nvlink4": 256}
"""Most GPUs that a preset connects with each other, by NVSwitch: DGX-2, HGX A100 of two boards,
DGX H100 with the NVLink Switch System. Networks have no limit."""

_KEYS = ("alpha", "bandwidth", "gamma")


def parse_link(flag: str, text: str) -> Link:
    """A link from the command line; without gamma, adding costs nothing.

    `text` is a preset; or ``alpha=SECONDS,bandwidth=BYTES_PER_SECOND[,gamma=SECONDS_PER_BYTE]``; or
    a preset followed by the parameters that differ, as in ``edr,alpha=5e-6``.
    """
    first, *rest = [part.strip() for part in text.split(",")]
    link = None if "=" in first else _find(flag, text, first)
    values = _values(flag, text, rest if link is not None else [first, *rest])
    if link is None:
        missing = [key for key in _KEYS[:2] if key not in values]
        if missing:
            raise FlagError(
                flag, text, f"lacks {missing[0]}; give alpha=SECONDS,bandwidth=BYTES_PER_SECOND"
            )
        link = Link(text, 0.0, 0.0, 0.0)
    changes = dict(values)
    if "bandwidth" in changes:
        changes["beta"] = 1 / changes.pop("bandwidth")
    return dataclasses.replace(link, name=text, **changes)


def _find(flag: str, text: str, name: str) -> Link:
    if name not in PRESETS:
        close = nearest(name, PRESETS)
        hint = f"did you mean {close}? " if close else ""
        raise FlagError(
            flag,
            text,
            f"there is no link {name!r}; {hint}must be one of {', '.join(PRESETS)}, or "
            "alpha=SECONDS,bandwidth=BYTES_PER_SECOND",
        )
    return PRESETS[name]


def _values(flag: str, text: str, parts: list[str]) -> dict[str, float]:
    values: dict[str, float] = {}
    for part in parts:
        key, equals, number = part.partition("=")
        if not equals or key not in _KEYS or key in values:
            reason = "is given twice" if key in values else f"must be {' or '.join(_KEYS)}=number"
            raise FlagError(flag, text, f"{part!r} {reason}")
        try:
            value = parse_number(number)
        except ValueError:
            value = -1.0
        if value < 0 or (key == "bandwidth" and value == 0):
            least = "above 0" if key == "bandwidth" else "of at least 0"
            raise FlagError(flag, text, f"{key} must be a finite number {least}, not {number!r}")
        values[key] = value
    return values
