"""The time of an all-reduce between logical devices that share one machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cnnbench.predict.host_cost import WORK, Work, algorithm_work
from cnnbench.predict.network import NotPredictedError
from cnnbench.predict.packing import Packing
from cnnbench.predict.tensor import Tensor
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
        """Time to reduce the tensors.

        Args:
          spec: algorithms by size.
          tensors: before packing.
          devices: at least 1.
          packing: what is done before and undone after.

        Returns:
          Seconds; 0 on one device.

        Raises:
          NotPredictedError: nobody knows what the algorithm does here.
        """
        if devices == 1:
            return 0.0
        work = reduction_work(spec, tensors, devices, packing, self.group_size)
        amounts = features(work, tensors, devices, self.cache_bytes)
        return sum(self.rates[name] * amounts[name] for name in RATES)


def reduction_work(
    spec: AllReduceSpec,
    tensors: Sequence[Tensor],
    devices: int,
    packing: Packing,
    group_size: int = 0,
) -> Work:
    """What all devices do together; see `Host`.

    Raises:
      NotPredictedError: nobody knows what the algorithm does here.
    """
    total = packing_work(packing, tensors, devices)
    for tensor, count in Counter(packing.apply(tensors)).items():
        total += _tensor_work(spec, tensor, devices, group_size).times(count)
    return total


def features(
    work: Work, tensors: Sequence[Tensor], devices: int, cache_bytes: float
) -> dict[str, float]:
    """How often each rate is paid.

    Of what is read and written, the share that is kept in caches is that of the caches in
    the values of all devices and the sums.
    """
    footprint = devices * sum(tensor.bytes for tensor in tensors) + work.fresh
    beyond = max(0.0, 1 - cache_bytes / footprint) if footprint else 0.0
    traffic = work.read + work.written
    return {
        "launch": 1.0,
        "device": float(devices),
        "ops": work.ops,
        "transfers": work.transfers,
        "cached": traffic * (1 - beyond),
        "memory": traffic * beyond,
        "mapped": work.mapped,
        "calls": work.calls,
        "steps": work.steps,
        "moved": work.moved,
    }


def packing_work(packing: Packing, tensors: Sequence[Tensor], devices: int) -> Work:
    """Joining before, taking apart after, on every device; casting on the way.

    Joining copies; taking apart gives views of what was joined.
    """
    work = Work()
    if packing.packs:
        sent = packing.joined(tensors)
        ops = 2 * len(tensors) + 2 * len(sent)
        joined = sum(tensor.bytes for tensor in sent)
        work += Work(ops=ops, read=joined, written=joined, fresh=joined).times(devices)
    if packing.compact_dtype:
        # Every device narrows what it sends and widens what it is given.
        cast = packing.joined(tensors)
        wide = sum(tensor.bytes for tensor in cast)
        narrow = sum(tensor.bytes for tensor in packing.narrowed(cast))
        there = Work(len(cast), read=wide, written=narrow, fresh=narrow)
        back = Work(len(cast), read=narrow, written=wide, fresh=wide)
        work += (there + back).times(devices)
    return work


def _tensor_work(spec: AllReduceSpec, tensor: Tensor, devices: int, group_size: int) -> Work:
    algorithm = spec.ranges[spec.range_of(tensor.bytes)].algorithm
    for name in algorithm.levels:
        if name not in WORK:
            raise NotPredictedError(f"{name} does not work on CPU devices")
    groups = _groups(devices, group_size)
    members = devices if len(algorithm.levels) == 1 else len(groups)
    if algorithm.shards > members:
        raise NotPredictedError(f"{algorithm.shards} shards need as many devices")
    return algorithm_work(algorithm.levels, algorithm.shards, tensor, groups)


def _groups(devices: int, size: int) -> list[int]:
    whole, rest = divmod(devices, size or devices)
    return [size or devices] * whole + ([rest] if rest else [])
