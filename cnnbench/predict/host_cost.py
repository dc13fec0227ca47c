"""What a reduction makes a machine do whose devices share its cores and memory.

Logical CPU devices run on the same threads, so what counts is not the longest path but
the work of all devices together: how many ops run, how many tensors change device, how
many bytes are read and written. The counts are those of the ops that the algorithms build
in TensorFlow on CPU devices of one process; a test holds them against traced graphs.

Between devices of one process a tensor is handed over, not copied, so nothing is cut but
into the shards that a spec asks for, and the result is one tensor for all. Slices,
reshapes and splits at multiples of 64 bytes are views: ops that move nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

from cnnbench.predict.tensor import Chunks, Tensor


@dataclass(frozen=True)
class Work:
    """Work of all devices together.

    Attributes:
      ops: operations that run.
      transfers: tensors handed from one device to another.
      read: bytes read by additions and copies.
      written: bytes written by them.
      fresh: of these, bytes in new buffers; other sums replace the partial sum that was
        added to.
      mapped: of these, bytes in buffers so large that malloc maps memory for each, which
        the kernel then clears page by page (glibc: 32 MiB and more).
      calls: TensorFlow's collective ops, of which each waits for those of other devices.
      steps: messages inside of them.
      moved: bytes that these messages copy.
    """

    ops: float = 0.0
    transfers: float = 0.0
    read: float = 0.0
    written: float = 0.0
    fresh: float = 0.0
    mapped: float = 0.0
    calls: float = 0.0
    steps: float = 0.0
    moved: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def times(self, count: float) -> Work:
        """So much work several times."""
        return Work(*(count * getattr(self, f.name) for f in fields(self)))


_MAPPED_BYTES = 32 * 1024**2

WorkOf = Callable[[Tensor, int, int], Work]


def copy(tensor: Tensor, devices: int, shards: int) -> Work:
    """One op adds all values."""
    return _add_n(devices, tensor.bytes) + Work(transfers=devices - 1)


def hierarchical_copy(tensor: Tensor, devices: int, shards: int) -> Work:
    """One op adds in each half, one both sums."""
    size = tensor.bytes
    halves = [half for half in (devices // 2, devices - devices // 2) if half > 1]
    total = Work(1, devices - 1, read=2 * size) + _written(size, 0 if len(halves) == 2 else size)
    for half in halves:
        total += _add_n(half, size)
    return total


def ring(tensor: Tensor, devices: int, shards: int) -> Work:
    """n-1 additions per chunk."""
    cut = tensor.cut(shards)
    hops = devices - 1
    adds = Work(cut.count * hops, cut.count * hops, read=2 * hops * tensor.bytes)
    adds += _written(hops * tensor.bytes, tensor.bytes, cut.bytes)
    return adds + _split(tensor, cut, devices) + _join(tensor, cut, devices)


def halving_doubling(tensor: Tensor, devices: int, shards: int) -> Work:
    """Whole tensors are added in pairs, then the sums in pairs."""
    adds = devices - 1
    power = 1 << (devices.bit_length() - 1)
    # What is added to a partial sum replaces it.
    pairs = max(power // 2, devices - power)
    size = tensor.bytes
    return Work(adds, adds, read=2 * adds * size) + _written(adds * size, pairs * size, size)


def tree(tensor: Tensor, devices: int, shards: int) -> Work:
    """The n/2 inner places of a tree add their children's sums to their own value."""
    cut = tensor.cut(shards)
    inner = devices // 2
    adds = Work(
        ops=cut.count * inner,
        transfers=cut.count * (devices - 1),
        read=(devices - 1 + inner) * tensor.bytes,
    )
    adds += _written(inner * tensor.bytes, inner * tensor.bytes, cut.bytes)
    return adds + _split(tensor, cut, devices) + _join(tensor, cut, devices)


def shuffle(tensor: Tensor, devices: int, shards: int) -> Work:
    """One op per shard adds all values."""
    cut = tensor.cut(shards)
    adds = Work(cut.count, cut.count * (devices - 1), read=devices * tensor.bytes)
    adds += _written(tensor.bytes, tensor.bytes, cut.bytes)
    return adds + _split(tensor, cut, devices) + _join(tensor, cut, devices)


def collective(tensor: Tensor, devices: int, shards: int) -> Work:
    """One op per device: copies its input, then n-1 hops that add, n-1 that hand on.

    The chunks of a hop are copied from device to device, then added where they are.
    """
    if not tensor.elements:
        return Work()
    hops = devices - 1
    return Work(
        calls=devices,
        read=2 * hops * tensor.bytes,
        written=hops * tensor.bytes,
        fresh=devices * tensor.bytes,
        mapped=devices * tensor.bytes if tensor.bytes >= _MAPPED_BYTES else 0,
        steps=2 * hops * devices * shards,
        moved=(devices + 2 * hops) * tensor.bytes,
    )


WORK: dict[str, WorkOf] = {
    "copy": copy,
    "hierarchical_copy": hierarchical_copy,
    "xring": ring,
    "collective": collective,
    "rechd": halving_doubling,
    "tree": tree,
    "psgpu": shuffle,
    "pscpu": shuffle,
}
"""By the name of the algorithm in an all-reduce spec; NCCL has none, it needs GPUs."""


def algorithm_work(levels: tuple[str, ...], shards: int, tensor: Tensor, groups: list[int]) -> Work:
    """Work of one or two levels, and of handing the result to all devices.

    Args:
      levels: names in `WORK`.
      shards: of the last level.
      tensor: one tensor.
      groups: sizes of the groups of devices, for two levels.

    Raises:
      KeyError: a name that is not in `WORK`.
    """
    devices = sum(groups)
    if len(levels) == 1:
        total = WORK[levels[0]](tensor, devices, shards)
        return total + _results(levels[0], devices)
    within, between = levels
    total = Work()
    for group in groups:
        if group > 1:
            total += WORK[within](tensor, group, 1)
    if len(groups) == 1:
        return total + _results(within, devices)
    total += WORK[between](tensor, len(groups), shards)
    # Each group's devices are handed what its speaker has.
    return total + _results(between, len(groups)) + Work(transfers=devices - len(groups))


def _results(name: str, devices: int) -> Work:
    """The result of all but collectives is one tensor on one device."""
    return Work() if name == "collective" else Work(transfers=devices - 1)


def _add_n(values: int, size: int) -> Work:
    return Work(ops=1, read=values * size) + _written(size, size)


def _written(size: float, fresh: float, each: float | None = None) -> Work:
    """So many bytes written, of which some into new buffers, of `each` bytes or one of all."""
    buffer = fresh if each is None else each
    return Work(written=size, fresh=fresh, mapped=fresh if buffer >= _MAPPED_BYTES else 0)


def _split(tensor: Tensor, cut: Chunks, devices: int) -> Work:
    """Every device cuts its value into chunks."""
    if cut.count < 2:
        return Work()
    return Work(ops=devices * (2 if tensor.splits_in_rows else 1 + cut.count))


def _join(tensor: Tensor, cut: Chunks, devices: int) -> Work:
    """One device joins the chunks for all."""
    if cut.count < 2:
        return Work()
    # Chunks are completed on different devices, one of them where they are joined.
    fetched = math.ceil(cut.count * (devices - 1) / devices)
    return Work(2, fetched, read=tensor.bytes) + _written(tensor.bytes, tensor.bytes)
