"""What a run of `cnnbench allreduce` will do, resolved before TensorFlow is loaded."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from cnnbench.allreduce import peers
from cnnbench.allreduce.cases import Case, Workload, parse_sizes
from cnnbench.errors import FlagError
from cnnbench.flags import Params, validate
from cnnbench.flags.checks import check_labels, check_on_local_devices
from cnnbench.flags.declare import specs_of, words
from cnnbench.flags.groups.allreduce import (
    AllReduceParams,
    PlaceParams,
    model_gradients,
    parse_packings,
    parse_specs,
)
from cnnbench.runtime.tensorflow import Settings
from cnnbench.variable_mgr.aggregation.spec import Packing
from cnnbench.variable_mgr.all_reduce import AllReduceSpec

_DEFAULT_SIZES = "1K:64M:x4"


@dataclass(frozen=True, kw_only=True)
class Length:
    """How long to measure.

    Attributes:
      chain: reductions in one call.
      warmup: calls before the timed ones.
      rounds: timed calls of every case.
      seed: of data and order.
      build_only: nothing is called after the first time.
    """

    chain: int
    warmup: int
    rounds: int
    seed: int
    build_only: bool = False


@dataclass(frozen=True, kw_only=True)
class AllReducePlan:
    """The work of one run.

    Attributes:
      params: what it was made from.
      workloads: tensors to reduce, in order.
      counts: numbers of devices, in order.
      dtype: of the tensors.
      specs: algorithms; None for all that work on the devices.
      packings: around each of them.
      peers: names.
      length: how long to measure.
      settings: of TensorFlow, for the largest number of devices.
    """

    params: AllReduceParams
    workloads: tuple[Workload, ...]
    counts: tuple[int, ...]
    dtype: str
    specs: tuple[AllReduceSpec, ...] | None
    packings: tuple[Packing, ...]
    peers: tuple[str, ...]
    length: Length
    settings: Settings

    def cases(self, specs: Sequence[AllReduceSpec]) -> tuple[Case, ...]:
        """Every spec with every packing, then the peers."""
        return (
            *(Case(spec=spec, packing=packing) for spec in specs for packing in self.packings),
            *(Case(peer=peer) for peer in self.peers),
        )


def make_plan(params: AllReduceParams, explicit: Sequence[str] = ()) -> AllReducePlan:
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
    return AllReducePlan(
        params=params,
        workloads=_workloads(params),
        counts=counts,
        dtype=params.dtype,
        specs=specs,
        packings=parse_packings(params),
        peers=_peers(params.peers),
        length=_length(params, explicit),
        settings=_settings(params, max(counts)),
    )


def _workloads(params: AllReduceParams) -> tuple[Workload, ...]:
    if params.model is None:
        for name in ("data_name", "model_plugin"):
            value = getattr(params, name)
            if value is not None:
                raise FlagError(name, value, "needs --model, whose gradients are reduced")
        return parse_sizes(params.sizes or _DEFAULT_SIZES, params.dtype)
    named = () if params.sizes is None else parse_sizes(params.sizes, params.dtype)
    _, shapes = model_gradients(params.model, params.data_name, params.model_plugin)
    return (*named, Workload(params.model, shapes))


def _peers(text: str) -> tuple[str, ...]:
    found = words(text)
    for peer in found:
        if peer not in peers.NAMES:
            raise FlagError(
                "peers", text, f"there is no {peer!r}; must be of {', '.join(peers.NAMES)}"
            )
    return found


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


def _settings(params: AllReduceParams, devices: int) -> Settings:
    """The settings of a run with the same flags."""
    shared = {spec.name: getattr(params, spec.name) for spec in specs_of(PlaceParams)}
    run = Params(**{**shared, "num_gpus": devices})
    validate(run)
    return Settings.of(run)
