"""What a run of `cnnbench allreduce` will do, worked out before TensorFlow is loaded."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from cnnbench.allreduce import peers
from cnnbench.allreduce.cases import Way, parse_peers
from cnnbench.allreduce.length import Length
from cnnbench.allreduce.sizes import Workload, parse_sizes
from cnnbench.errors import FlagError
from cnnbench.flags import Params, validate
from cnnbench.flags.gradients import model_gradients
from cnnbench.flags.groups.allreduce import AllReduceParams, parse_packings, parse_specs
from cnnbench.flags.groups.output import check_labels
from cnnbench.flags.shared import check_on_local_devices
from cnnbench.runtime.tensorflow import Settings
from cnnbench.variable_mgr.aggregation.spec import Packing
from cnnbench.variable_mgr.all_reduce import AllReduceSpec

DEFAULT_SIZES = "1K:64M:x4"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The work of one run.

    Attributes:
      workloads: tensors to reduce, in order.
      counts: numbers of devices, in order.
      dtype: of the tensors.
      specs: algorithms; None for all that work on the devices.
      packings: around each of them.
      peers: names.
      length: for how long.
      runtime: what configures TensorFlow, for the largest number of devices.
    """

    workloads: tuple[Workload, ...]
    counts: tuple[int, ...]
    dtype: str
    specs: tuple[AllReduceSpec, ...] | None
    packings: tuple[Packing, ...]
    peers: tuple[str, ...]
    length: Length
    runtime: Settings

    def ways(self, specs: Sequence[AllReduceSpec]) -> tuple[Way, ...]:
        """Every spec with every packing, then the peers."""
        return (
            *(Way(spec=spec, packing=packing) for spec in specs for packing in self.packings),
            *(Way(peer=peer) for peer in self.peers),
        )


def make_plan(params: AllReduceParams, explicit: Sequence[str] = ()) -> Plan:
    """Resolves everything that can be refused without a device.

    Args:
      params: every value checked by itself.
      explicit: names of the flags that were given.

    Raises:
      FlagError: names flag and value.
    """
    check_labels(params.result_label)
    counts = tuple(dict.fromkeys(params.num_gpus))
    if not counts:
        raise FlagError("num_gpus", "", "must name at least one number of devices")
    specs = parse_specs(params.all_reduce_spec)
    for spec, count in itertools.product(specs or (), counts):
        check_on_local_devices(
            spec,
            count,
            params.device,
            network_topology=params.network_topology,
            group_size=params.all_reduce_group_size,
        )
    return Plan(
        workloads=_workloads(params),
        counts=counts,
        dtype=params.dtype,
        specs=specs,
        packings=parse_packings(params),
        peers=parse_peers(params.peers, peers.NAMES),
        length=_length(params, explicit),
        runtime=_runtime(params, max(counts)),
    )


def _workloads(params: AllReduceParams) -> tuple[Workload, ...]:
    sizes = params.sizes
    if params.model is None:
        for name in ("data_name", "model_plugin"):
            value = getattr(params, name)
            if value is not None:
                raise FlagError(name, value, "needs --model, whose gradients are reduced")
        return parse_sizes(sizes or DEFAULT_SIZES, params.dtype)
    named = () if sizes is None else parse_sizes(sizes, params.dtype)
    _, shapes = model_gradients(params.model, params.data_name, params.model_plugin)
    return (*named, Workload(params.model, shapes))


def _length(params: AllReduceParams, explicit: Sequence[str]) -> Length:
    rounds = params.num_batches
    if params.iterations is not None:
        if "num_batches" in explicit and rounds != params.iterations:
            raise FlagError("iterations", params.iterations, f"contradicts --num_batches={rounds}")
        rounds = params.iterations
    one_by_one = params.build_only and "iters_per_step" not in explicit
    return Length(
        chain=1 if one_by_one else params.iters_per_step,
        warmup=params.num_warmup_batches,
        rounds=rounds,
        seed=params.tf_random_seed,
        build_only=params.build_only,
    )


def _runtime(params: AllReduceParams, devices: int) -> Settings:
    """The settings of a run with the same flags."""
    runtime = Params(
        num_gpus=devices,
        device=params.device,
        gpu_indices=params.gpu_indices,
        num_intra_threads=params.num_intra_threads,
        num_inter_threads=params.num_inter_threads,
        gpu_thread_mode=params.gpu_thread_mode,
        per_gpu_thread_count=params.per_gpu_thread_count,
        allow_growth=params.allow_growth,
        enable_optimizations=params.enable_optimizations,
    )
    validate(runtime)
    return Settings.of(runtime)
