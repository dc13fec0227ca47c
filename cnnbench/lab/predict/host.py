"""The time of an all-reduce between logical devices that share one machine.

Logical CPU devices run on the same threads, so what counts is not the longest path but
the work of all devices together: how many ops run, how many tensors change device, how
many bytes are read and written. The counts are those of the ops that the algorithms build
in TensorFlow on CPU devices of one process; a test compares them with traced graphs.

Between devices of one process a tensor is handed over, not copied, so nothing is cut but
into the shards that a spec asks for, and the result is one tensor for all. Slices,
reshapes and splits at multiples of 64 bytes are views: ops that move nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cnnbench.lab.predict.workload import (
    Additive,
    Chunks,
    NotPredictedError,
    Tensor,
    joined,
    narrowed,
    sent,
    total_bytes,
)
from cnnbench.variable_mgr.aggregation.spec import Packing
from cnnbench.variable_mgr.all_reduce.spec import AllReduceSpec

RATES: Mapping[str, str] = {
    "launch": "s per call",
    "device": "s per device and call",
    "ops": "s per op",
    "transfers": "s per tensor handed to another device",
    "cached": "s per byte read or written, where it fits into the caches",
    "memory": "s per byte read or written beyond",
    "mapped": "s per byte of newly mapped memory",
    "calls": "s per collective op",
    "steps": "s per message in a collective",
    "moved": "s per byte moved in a collective",
}
"""What is fitted, besides the capacity of the caches: names and units."""

_MAPPED_BYTES = 32 * 1024**2


@dataclass(frozen=True)
class Host:
    """A machine whose cores and memory all devices share.

    Attributes:
      rates: seconds per unit, by the names of `RATES`.
      cache_bytes: how much of the values and sums of all devices stays in caches.
      group_size: devices per group of two-level algorithms; 0 for one group of all.
    """

    rates: Mapping[str, float]
    cache_bytes: float
    group_size: int = 0

    def seconds(
        self, spec: AllReduceSpec, tensors: Sequence[Tensor], devices: int, packing: Packing
    ) -> float:
        """Time to reduce the tensors; arguments as of `Interconnect.seconds`.

        Raises:
          NotPredictedError: an algorithm is not known, or has no meaning on these devices.
        """
        if devices == 1:
            return 0.0
        work = reduction_work(spec, tensors, devices, packing, self.group_size)
        amounts = features(work, tensors, devices, self.cache_bytes)
        return sum(self.rates[name] * amounts[name] for name in RATES)


@dataclass(frozen=True)
class Work(Additive):
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


def reduction_work(
    spec: AllReduceSpec,
    tensors: Sequence[Tensor],
    devices: int,
    packing: Packing,
    group_size: int = 0,
) -> Work:
    """What all devices do together.

    Args:
      spec: algorithms by size.
      tensors: of one device, before packing.
      devices: how many, at least 2.
      packing: what is done before and undone after.
      group_size: devices per group of two-level algorithms; 0 for one group of all.

    Raises:
      NotPredictedError: the work of an algorithm is not known.
    """
    total = _packing_work(packing, tensors, devices)
    for tensor, count in Counter(sent(packing, tensors)).items():
        total += _tensor_work(spec, tensor, devices, group_size).times(count)
    return total


def features(
    work: Work, tensors: Sequence[Tensor], devices: int, cache_bytes: float
) -> dict[str, float]:
    """How often each rate is paid.

    The share of the traffic that is served from caches is their share of the values of all
    devices and the sums.

    Args:
      work: of the reduction.
      tensors: of one device, before packing.
      devices: how many.
      cache_bytes: capacity of the caches.
    """
    footprint = devices * total_bytes(tensors) + work.fresh
    beyond = max(0.0, 1 - cache_bytes / footprint) if footprint else 0.0
    traffic = work.read + work.written
    counted = {
        **vars(work),
        "launch": 1.0,
        "device": float(devices),
        "cached": traffic * (1 - beyond),
        "memory": traffic * beyond,
    }
    return {name: counted[name] for name in RATES}


def _packing_work(packing: Packing, tensors: Sequence[Tensor], devices: int) -> Work:
    """Joining before, splitting after, on every device; casting in between.

    Joining copies; splitting gives views of what was joined.
    """
    work = Work()
    whole = joined(packing, tensors)
    size = total_bytes(whole)
    if packing.joins:
        ops = 2 * len(tensors) + 2 * len(whole)
        work += Work(ops=ops, read=size, written=size, fresh=size)
    if packing.compact_dtype:
        narrow = total_bytes(narrowed(packing, whole))
        work += Work(len(whole), read=size, written=narrow, fresh=narrow)
        work += Work(len(whole), read=narrow, written=size, fresh=size)
    return work.times(devices)


def _tensor_work(spec: AllReduceSpec, tensor: Tensor, devices: int, group_size: int) -> Work:
    algorithm = spec.ranges[spec.range_of(tensor.bytes)].algorithm
    for name in algorithm.levels:
        if name not in WORK:
            raise NotPredictedError(f"{name} does not work on CPU devices")
    size = group_size or devices
    whole, rest = divmod(devices, size)
    groups = [size] * whole + ([rest] if rest else [])
    members = devices if len(algorithm.levels) == 1 else len(groups)
    if algorithm.shards > members:
        raise NotPredictedError(f"{algorithm.shards} shards need as many devices")
    return algorithm_work(algorithm.levels, algorithm.shards, tensor, groups)


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
        return WORK[levels[0]](tensor, devices, shards) + _results(levels[0], devices)
    within, between = levels
    total = Work()
    for group in groups:
        if group > 1:
            total += WORK[within](tensor, group, 1)
    if len(groups) == 1:
        return total + _results(within, devices)
    total += WORK[between](tensor, len(groups), shards)
    # Each group's devices are handed what the one that represents the group has.
    return total + _results(between, len(groups)) + Work(transfers=devices - len(groups))


def _copy(tensor: Tensor, devices: int, shards: int) -> Work:
    """One op adds all values."""
    return _add_n(devices, tensor.bytes) + Work(transfers=devices - 1)


def _hierarchical_copy(tensor: Tensor, devices: int, shards: int) -> Work:
    """One op adds in each half, one both sums."""
    size = tensor.bytes
    halves = [half for half in (devices // 2, devices - devices // 2) if half > 1]
    total = Work(1, devices - 1, read=2 * size) + _written(size, 0 if len(halves) == 2 else size)
    for half in halves:
        total += _add_n(half, size)
    return total


def _ring(tensor: Tensor, devices: int, shards: int) -> Work:
    """n-1 additions per chunk."""
    chunks = tensor.chunks(shards)
    hops = devices - 1
    adds = Work(chunks.count * hops, chunks.count * hops, read=2 * hops * tensor.bytes)
    adds += _written(hops * tensor.bytes, tensor.bytes, chunks.bytes)
    return adds + _cutting(tensor, chunks, devices)


def _halving_doubling(tensor: Tensor, devices: int, shards: int) -> Work:
    """Whole tensors are added in pairs, then the sums in pairs."""
    adds = devices - 1
    power = 1 << (devices.bit_length() - 1)
    # What is added to a partial sum replaces it.
    pairs = max(power // 2, devices - power)
    size = tensor.bytes
    return Work(adds, adds, read=2 * adds * size) + _written(adds * size, pairs * size, size)


def _tree(tensor: Tensor, devices: int, shards: int) -> Work:
    """The n/2 inner places of a tree add their children's sums to their own value."""
    chunks = tensor.chunks(shards)
    inner = devices // 2
    adds = Work(
        ops=chunks.count * inner,
        transfers=chunks.count * (devices - 1),
        read=(devices - 1 + inner) * tensor.bytes,
    )
    adds += _written(inner * tensor.bytes, inner * tensor.bytes, chunks.bytes)
    return adds + _cutting(tensor, chunks, devices)


def _shuffle(tensor: Tensor, devices: int, shards: int) -> Work:
    """One op per shard adds all values."""
    chunks = tensor.chunks(shards)
    adds = Work(chunks.count, chunks.count * (devices - 1), read=devices * tensor.bytes)
    adds += _written(tensor.bytes, tensor.bytes, chunks.bytes)
    return adds + _cutting(tensor, chunks, devices)


def _collective(tensor: Tensor, devices: int, shards: int) -> Work:
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


WORK: dict[str, Callable[[Tensor, int, int], Work]] = {
    "copy": _copy,
    "hierarchical_copy": _hierarchical_copy,
    "xring": _ring,
    "collective": _collective,
    "rechd": _halving_doubling,
    "tree": _tree,
    "psgpu": _shuffle,
    "pscpu": _shuffle,
}
"""Work of (tensor, devices, shards) by the name of the algorithm; NCCL has none, it needs GPUs."""


def _results(name: str, devices: int) -> Work:
    """The result of all but collectives is one tensor on one device."""
    return Work() if name == "collective" else Work(transfers=devices - 1)


def _add_n(values: int, size: int) -> Work:
    return Work(ops=1, read=values * size) + _written(size, size)


def _written(size: float, fresh: float, each: float | None = None) -> Work:
    """So many bytes written, of which some into new buffers, of `each` bytes or one of all."""
    buffer = fresh if each is None else each
    return Work(written=size, fresh=fresh, mapped=fresh if buffer >= _MAPPED_BYTES else 0)


def _cutting(tensor: Tensor, chunks: Chunks, devices: int) -> Work:
    """Every device cuts its value into chunks, and one joins the chunks for all."""
    if chunks.count < 2:
        return Work()
    split = Work(ops=devices * (2 if tensor.splits_in_rows else 1 + chunks.count))
    # Chunks are completed on different devices, one of them where they are joined.
    fetched = math.ceil(chunks.count * (devices - 1) / devices)
    join = Work(2, fetched, read=tensor.bytes) + _written(tensor.bytes, tensor.bytes)
    return split + join
