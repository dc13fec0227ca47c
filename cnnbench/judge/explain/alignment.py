"""Alignment of the layers of two networks, as a diff aligns the lines of two files.

Kind, shapes and order decide. Names only break ties, since an inserted layer renumbers later ones.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from cnnbench.base.grouping import grouped
from cnnbench.base.text.numbers import count
from cnnbench.records.step_profile import FORWARD, REST, TO_KERNEL, ProfiledLayer, StepProfile

# Scores of pairs of layers; a layer without a counterpart scores 0.
_EQUAL, _SAME_SHAPES, _SAME_KIND, _SAME_CLASS, _TIE = 1.0, 0.8, 0.6, 0.3, 0.01
_SHAPES = 0.1  # added where all shapes agree
_NO_PRODUCT = 0.5  # factor for layers such as batch norm, which resemble many others
_FEW = 0.5  # share of equal layers, below which families may differ
_MOST = 0.8  # share of layers of equal kinds, above which they do not

Layers = Sequence[ProfiledLayer]
Pair = tuple[ProfiledLayer, ProfiledLayer]


@dataclass(frozen=True)
class Alignment:
    """Corresponding layers of A and B: pairs in order, equal or changed, and moved equal ones."""

    a: tuple[ProfiledLayer, ...]
    b: tuple[ProfiledLayer, ...]
    pairs: tuple[Pair, ...]
    moved: tuple[Pair, ...]

    @classmethod
    def of(cls, base: Layers, new: Layers) -> Alignment:
        """Aligns two networks."""
        pairs = _aligned(base, new)
        taken = {one.name for one, _ in pairs}, {one.name for _, one in pairs}
        free = (one for one in new if one.name not in taken[1] and one.kind)
        waiting = grouped(free, _signature)
        moved = [
            (one, waiting[_signature(one)].pop(0))
            for one in base
            if one.name not in taken[0] and waiting.get(_signature(one))
        ]
        return cls(tuple(base), tuple(new), tuple(pairs), tuple(moved))

    @cached_property
    def only_a(self) -> tuple[ProfiledLayer, ...]:
        """Layers of A without a counterpart."""
        taken = {one.name for one, _ in (*self.pairs, *self.moved)}
        return tuple(one for one in self.a if one.name not in taken)

    @cached_property
    def only_b(self) -> tuple[ProfiledLayer, ...]:
        """Layers of B without a counterpart."""
        taken = {one.name for _, one in (*self.pairs, *self.moved)}
        return tuple(one for one in self.b if one.name not in taken)

    @cached_property
    def is_other_network(self) -> bool:
        """Whether the networks differ too much to be compared layer by layer."""
        sizes = [sum(bool(one.kind) for one in side) for side in (self.a, self.b)]
        if not min(sizes):
            return False
        found = [pair for pair in (*self.pairs, *self.moved) if pair[0].kind]
        equal = sum(_signature(one) == _signature(other) for one, other in found)
        alike = sum(one.kind == other.kind for one, other in found)
        return equal < _FEW * min(sizes) and alike < _MOST * max(sizes)

    @cached_property
    def names(self) -> Mapping[str, str]:
        """The name of each layer and scope of B in A, if it has a counterpart."""
        if self.is_other_network:
            return {}
        found = {other.name: one.name for one, other in (*self.pairs, *self.moved)}
        taken = {one.name for one in self.a}
        for one in self.only_b:
            found[one.name] = f"{one.name} of B" if one.name in taken else one.name
        votes: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for one, other in self.pairs:
            ours, theirs = one.name.split("/")[:-1], other.name.split("/")[:-1]
            while ours and theirs:
                votes["/".join(theirs)]["/".join(ours)] += 1
                ours, theirs = ours[:-1], theirs[:-1]
        scopes = {theirs: ours.most_common(1)[0][0] for theirs, ours in votes.items()}
        return {**scopes, **found}

    def text(self) -> str:
        """Further or moved layers of B: "B has a convolution more (1x1, after conv3)"."""
        found = [
            *_counted(self.only_b, "more", self.b, self.names),
            *_counted(self.only_a, "less", self.a, {}),
        ]
        if (moved := [pair for pair in self.moved if pair[0].kind]) and not found:
            first = moved[0]
            found = [f"{count(len(moved), 'layer', 'layers')} in another place ({first[0].name})"]
        return f"B has {' and '.join(found)}" if found else ""


def layers_of(profile: StepProfile) -> Layers:
    """The layers of a network; only those with products if the document lists no layers."""
    if profile.layers is not None:
        return profile.layers
    found: dict[str, ProfiledLayer] = {}
    for row in profile.rows:
        if row.layer != REST and row.direction in (FORWARD, TO_KERNEL) and row.flops:
            one = ProfiledLayer(
                name=row.layer, kind=row.kind, shapes=(), parameters=0, flops=row.flops
            )
            found.setdefault(row.layer, one)
    return tuple(found.values())


def _signature(one: ProfiledLayer) -> tuple[object, ...]:
    """Values of equal layers; FLOPs replace shapes in documents without these."""
    return (one.kind, one.shapes or one.flops, one.parameters)


def _class(one: ProfiledLayer) -> str:
    return one.kind.rpartition(" ")[0] if "convolution" in one.kind else one.kind


def _worth(one: ProfiledLayer, other: ProfiledLayer) -> float:
    """Score of a pair of layers; 0 if they cannot be paired."""
    if _class(one) != _class(other):
        return 0.0
    tie = _TIE * (one.name == other.name)
    if _signature(one) == _signature(other):
        worth = _EQUAL if one.flops == other.flops else _SAME_SHAPES
    else:
        sizes = [[size for shape in side.shapes for size in shape] for side in (one, other)]
        same = sum(a == b for a, b in zip(*sizes, strict=False)) / max(1, *map(len, sizes))
        worth = (_SAME_KIND if one.kind == other.kind else _SAME_CLASS) + _SHAPES * same
    return (worth if one.kind else _NO_PRODUCT * worth) + tie


def _aligned(base: Layers, new: Layers) -> list[Pair]:
    same = [one == other for one, other in zip(base, new, strict=False)]
    start = same.index(False) if False in same else len(same)
    common = list(zip(base[:start], new[:start], strict=True))
    a, b = base[start:], new[start:]
    best = [[0.0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i in reversed(range(len(a))):
        for j in reversed(range(len(b))):
            worth = _worth(a[i], b[j])
            paired = best[i + 1][j + 1] + worth if worth else 0.0
            best[i][j] = max(paired, best[i + 1][j], best[i][j + 1])
    i = j = 0
    while i < len(a) and j < len(b):
        worth = _worth(a[i], b[j])
        if worth and best[i][j] == best[i + 1][j + 1] + worth:
            common.append((a[i], b[j]))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return common


def _counted(only: Layers, word: str, side: Layers, names: Mapping[str, str]) -> list[str]:
    """Layers by class: "2 convolutions more (3x3, after conv1)"."""
    products = [one for one in only if one.kind] or only
    found = []
    for kind, those in grouped(products, _class).items():
        noun = {"dense": "dense layer", "": "layer"}.get(kind, kind)
        number = f"a {noun}" if len(those) == 1 else f"{len(those)} {noun}s"
        sizes = dict.fromkeys(one.kind.rpartition(" ")[2] for one in those if "x" in one.kind)
        at = side.index(those[0])
        before = next((one.name for one in reversed(side[:at]) if one.kind), "")
        where = f"after {names.get(before, before)}" if before else "before all others"
        found.append(f"{number} {word} ({', '.join([*sizes, where])})")
    return found
