"""The time of an all-reduce between logical devices that share one machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from cnnbench.cost_model.network import NotPredictedError
from cnnbench.cost_model.packing import Packing
from cnnbench.cost_model.tensor import Tensor
from cnnbench.cost_model.work import WORK, Work, algorithm_work
from cnnbench.variable_mgr.all_reduce.spec import AllReduceSpec

RATES: Mapping[str, str] = {
    "launch": "s per call",
    "device": "s per device and call",
    **{
        "ops": "s per op",
        "transfers": "s per tensor handed to another device",
        "read": "s per byte read",
        "written": "s per byte written",
        "mapped": "s per byte of newly mapped memory",
        "steps": "s per message in a collective",
        "moved": "s per byte moved in a collective",
    },
}
"""What is fitted: names and units. All but two are those of `Work`."""


@dataclass(frozen=True)
class Host:
    """A machine whose cores and memory all devices share.

    Attributes:
      rates: seconds per unit, by the names of `RATES`.
      group_size: devices per group of two-level algorithms; 0 for one group of all.
    """

    rates: Mapping[str, float]
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
        amounts = features(spec, tensors, devices, packing, self.group_size)
        return sum(self.rates[name] * amounts[name] for name in RATES)


def features(
    spec: AllReduceSpec,
    tensors: Sequence[Tensor],
    devices: int,
    packing: Packing,
    group_size: int = 0,
) -> dict[str, float]:
    """How often each rate is paid; see `Host`.

    Raises:
      NotPredictedError: nobody knows what the algorithm does here.
    """
    total = packing_work(packing, tensors, devices)
    for tensor in packing.apply(tensors):
        total += _tensor_work(spec, tensor, devices, group_size)
    return {
        "launch": 1.0,
        "device": float(devices),
        **{field.name: getattr(total, field.name) for field in fields(Work)},
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
        work += Work(ops=ops, read=joined, written=joined).times(devices)
    if packing.compact_dtype:
        # Packs are cast piece by piece, which every device does for itself.
        cast = tensors if packing.gradient_repacking else packing.joined(tensors)
        wide = sum(tensor.bytes for tensor in cast)
        narrow = sum(tensor.bytes for tensor in packing.narrowed(cast))
        back = devices if packing.gradient_repacking else 1
        work += Work(ops=len(cast), read=wide, written=narrow).times(devices)
        work += Work(ops=len(cast), read=narrow, written=wide).times(back)
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
