"""What is measured: every algorithm with every packing, and the peers."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from cnnbench.allreduce.sizes import parse_bytes
from cnnbench.errors import FlagError
from cnnbench.flags.groups.allreduce import AllReduceParams
from cnnbench.variable_mgr.aggregation.spec import AggregationSpec, Packing
from cnnbench.variable_mgr.all_reduce import AllReduceSpec, names, parse_all_reduce_spec

WIRE_DTYPES = ("float16", "bfloat16")
_SAME = "same"


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to reduce.

    Attributes:
      spec: the parsed spec; None for a peer.
      peer: name of the peer; None for a spec.
      packing: around it; none around a peer.
    """

    spec: AllReduceSpec | None = None
    peer: str | None = None
    packing: Packing = field(default_factory=Packing)

    def __str__(self) -> str:
        return self.peer or str(self.spec)

    def aggregation(self) -> AggregationSpec:
        """The stages around the algorithm, for `cnnbench.variable_mgr`."""
        return AggregationSpec(all_reduce=self.spec, **dataclasses.asdict(self.packing))


def parse_specs(text: str | None) -> tuple[AllReduceSpec, ...] | None:
    """The specs of --all_reduce_spec; None if it was not given.

    Raises:
      FlagError: points at what is wrong.
    """
    if text is None:
        return None
    known = names()
    return tuple(dict.fromkeys(parse_all_reduce_spec(s.strip(), known) for s in text.split(",")))


def parse_packings(params: AllReduceParams) -> tuple[Packing, ...]:
    """Every combination of the packings asked for, none twice.

    Raises:
      FlagError: names flag and value.
    """
    combinations = itertools.product(
        _small_sizes(params), params.gradient_repacking or (0,), _wires(params)
    )
    return tuple(
        dict.fromkeys(
            Packing(
                gradient_repacking=packs,
                agg_small_grads_max_bytes=small,
                agg_small_grads_max_group=params.agg_small_grads_max_group,
                compact_dtype=wire,
                allreduce_merge_scope=params.allreduce_merge_scope,
                variable_consistency=params.variable_consistency,
            )
            for small, packs, wire in combinations
        )
    )


def parse_peers(text: str, known: Sequence[str]) -> tuple[str, ...]:
    """The peers asked for.

    Raises:
      FlagError: names one that does not exist.
    """
    peers = _words(text)
    for peer in peers:
        if peer not in known:
            raise FlagError("peers", text, f"there is no {peer!r}; must be of {', '.join(known)}")
    return peers


def _small_sizes(params: AllReduceParams) -> list[int]:
    text = params.agg_small_grads_max_bytes
    sizes = [parse_bytes(piece) for piece in text.split(",")]
    known = [size for size in sizes if size is not None]
    if len(known) != len(sizes):
        raise FlagError(
            "agg_small_grads_max_bytes", text, "must be sizes in bytes, as in 0 or 0,64K"
        )
    return known


def _wires(params: AllReduceParams) -> list[str | None]:
    text = params.wire_dtype
    words = list(_words(text)) or [_SAME]
    for word in words:
        if word not in (_SAME, *WIRE_DTYPES):
            raise FlagError("wire_dtype", text, f"must be of {', '.join((_SAME, *WIRE_DTYPES))}")
        if word != _SAME and params.dtype != "float32":
            raise FlagError(
                "wire_dtype", text, f"is for float32; --dtype={params.dtype} has 16 bits already"
            )
    if params.compact_gradient_transfer:
        if words != [_SAME]:
            raise FlagError(
                "compact_gradient_transfer", "true", f"means float16, and --wire_dtype={text}"
            )
        if params.dtype != "float32":
            raise FlagError(
                "compact_gradient_transfer",
                "true",
                f"is for float32; --dtype={params.dtype} has 16 bits already",
            )
        words = ["float16"]
    return [None if word == _SAME else word for word in words]


def _words(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
