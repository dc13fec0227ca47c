"""Types of kernels by which devices exchange values."""

from __future__ import annotations

import re

_COLLECTIVE = re.compile(r"_?(Collective|Nccl)")
_TRANSFER = re.compile(r"_(Host)?(Send|Recv)$")
_SENT = re.compile(r"/_\d+$")


def is_collective(type: str) -> bool:
    """Whether kernels of this type exchange values among several devices."""
    return bool(_COLLECTIVE.match(type))


def is_transfer(type: str) -> bool:
    """Whether kernels of this type copy a value from one device to another."""
    return bool(_TRANSFER.match(type))


def source(name: str) -> str:
    """The operation whose result the operation of this name copies; else the name itself."""
    return _SENT.sub("", name)
