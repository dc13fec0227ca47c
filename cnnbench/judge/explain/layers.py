"""Finds the layers of networks A and B that correspond to each other, similar to a diff of two
files.

Layers are paired by kind, shapes and order. Names only break ties, because inserting a layer
changes the numbers of later layers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from cnnbench.base.stats import group_by
from cnnbench.base.text import count_text
from cnnbench.records.profiles import FORWARD, REST, TO_KERNEL, ProfiledLayer, StepProfile

# Scores of pairs of layers, by how similar the two layers are. A layer without a partner scores 0.
_EQUAL, _SAME_SHAPES, _SAME_KIND, _SAME_CLASS, _TIE = 1.0, 0.8, 0.6, 0.3, 0.01
_SHAPES = 0.1  # If all shapes agree, the score of a pair increases by this number.
_NO_PRODUCT = 0.5  # The scores of layers without products, such as batch norm, get this weight.
# If fewer layers are equal than this share, the networks may be from different families.
_FEW = 0.5
# If more layers are of equal kinds than this share, the networks are from the same family after
# all.
_MOST_ALIKE = 0.8

Layers: TypeAlias = Sequence[ProfiledLayer]
Pair: TypeAlias = tuple[ProfiledLayer, ProfiledLayer]


@dataclass(frozen=True)
class Alignment:
    """Which layers of networks A and B correspond to each other: pairs in order (equal or changed
    layers), and pairs of moved layers. Layers that are only in A or in B have no counterpart.
    """

    a: tuple[ProfiledLayer, ...]
    b: tuple[ProfiledLayer, ...]
    pairs: tuple[Pair, ...]
    moved: tuple[Pair, ...]
    only_in_a: tuple[ProfiledLayer, ...]
    only_in_b: tuple[ProfiledLayer, ...]

    @classmethod
    def of(cls, base: Layers, new: Layers) -> Alignment:
        """Finds the corresponding layers of two networks."""
        pairs = _align(base, new)
        taken = {layer.name for layer, _ in pairs}, {layer.name for _, layer in pairs}
        free = (layer for layer in new if layer.name not in taken[1] and layer.kind)
        waiting = group_by(free, _signature)
        moved = [
            (layer, waiting[_signature(layer)].pop(0))
            for layer in base
            if layer.name not in taken[0] and waiting.get(_signature(layer))
        ]
        taken[0].update(layer.name for layer, _ in moved)
        taken[1].update(layer.name for _, layer in moved)
        only_in_a, only_in_b = (
            tuple(layer for layer in side if layer.name not in names)
            for side, names in zip((base, new), taken, strict=True)
        )
        return cls(tuple(base), tuple(new), tuple(pairs), tuple(moved), only_in_a, only_in_b)

    @cached_property
    def too_different(self) -> bool:
        """Whether the networks differ too much to be compared layer by layer."""
        sizes = [sum(bool(layer.kind) for layer in side) for side in (self.a, self.b)]
        if not min(sizes):
            return False
        pairs = [pair for pair in (*self.pairs, *self.moved) if pair[0].kind]
        equal = sum(_signature(layer) == _signature(other) for layer, other in pairs)
        alike = sum(layer.kind == other.kind for layer, other in pairs)
        return equal < _FEW * min(sizes) and alike < _MOST_ALIKE * max(sizes)

    @cached_property
    def names_in_a(self) -> Mapping[str, str]:
        """Maps the name of each layer and scope of B to the name of its counterpart in A; {} if the
        networks differ too much.
        """
        if self.too_different:
            return {}
        names_in_a = {other.name: layer.name for layer, other in (*self.pairs, *self.moved)}
        taken = {layer.name for layer in self.a}
        for layer in self.only_in_b:
            names_in_a[layer.name] = f"{layer.name} of B" if layer.name in taken else layer.name
        votes: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for layer, other in self.pairs:
            ours, theirs = layer.name.split("/")[:-1], other.name.split("/")[:-1]
            while ours and theirs:
                votes["/".join(theirs)]["/".join(ours)] += 1
                ours, theirs = ours[:-1], theirs[:-1]
        scopes = {theirs: ours.most_common(1)[0][0] for theirs, ours in votes.items()}
        return {**scopes, **names_in_a}

    def difference_text(self) -> str:
        """Returns text about layers that were added, removed or moved in B: "B has a convolution
        more (1x1, after conv3)"; "" if there are none.
        """
        parts = [
            *_count_texts(self.only_in_b, "more", self.b, self.names_in_a),
            *_count_texts(self.only_in_a, "less", self.a, {}),
        ]
        if (moved := [pair for pair in self.moved if pair[0].kind]) and not parts:
            first = moved[0]
            parts = [
                f"{count_text(len(moved), 'layer', 'layers')} in another place ({first[0].name})"
            ]
        return f"B has {' and '.join(parts)}" if parts else ""


def layers_of(profile: StepProfile) -> Layers:
    """Returns the layers of a profiled network. If the profile contains no list of layers, returns
    only layers with convolutions or matrix products.
    """
    if profile.layers is not None:
        return profile.layers
    by_name: dict[str, ProfiledLayer] = {}
    for row in profile.rows:
        if row.layer != REST and row.direction in (FORWARD, TO_KERNEL) and row.flops:
            layer = ProfiledLayer(
                name=row.layer, kind=row.kind, shapes=(), parameters=0, flops=row.flops
            )
            by_name.setdefault(row.layer, layer)
    return tuple(by_name.values())


def _signature(layer: ProfiledLayer) -> tuple[object, ...]:
    """Returns a key that is equal for equal layers. It contains FLOPs instead of shapes if the
    profile contains no shapes.
    """
    return (layer.kind, layer.shapes or layer.flops, layer.parameters)


def _class(layer: ProfiledLayer) -> str:
    return layer.kind.rpartition(" ")[0] if "convolution" in layer.kind else layer.kind


def _similarity(layer: ProfiledLayer, other: ProfiledLayer) -> float:
    """Returns how similar two layers are; 0 if they must not be paired."""
    if _class(layer) != _class(other):
        return 0.0
    tie = _TIE * (layer.name == other.name)
    if _signature(layer) == _signature(other):
        worth = _EQUAL if layer.flops == other.flops else _SAME_SHAPES
    else:
        sizes = [[size for shape in side.shapes for size in shape] for side in (layer, other)]
        same = sum(a == b for a, b in zip(*sizes, strict=False)) / max(1, *map(len, sizes))
        worth = (_SAME_KIND if layer.kind == other.kind else _SAME_CLASS) + _SHAPES * same
    return (worth if layer.kind else _NO_PRODUCT * worth) + tie


def _align(base: Layers, new: Layers) -> list[Pair]:
    same = [row == other for row, other in zip(base, new, strict=False)]
    start = same.index(False) if False in same else len(same)
    common = list(zip(base[:start], new[:start], strict=True))
    a, b = base[start:], new[start:]
    best = [[0.0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i in reversed(range(len(a))):
        for j in reversed(range(len(b))):
            worth = _similarity(a[i], b[j])
            paired = best[i + 1][j + 1] + worth if worth else 0.0
            best[i][j] = max(paired, best[i + 1][j], best[i][j + 1])
    i = j = 0
    while i < len(a) and j < len(b):
        worth = _similarity(a[i], b[j])
        if worth and best[i][j] == best[i + 1][j + 1] + worth:
            common.append((a[i], b[j]))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return common


def _count_texts(unmatched: Layers, word: str, side: Layers, names: Mapping[str, str]) -> list[str]:
    """Returns texts about the layers in `unmatched`, which the other network lacks, by
    class: "2 convolutions more (3x3, after conv1)".
    """
    products = [layer for layer in unmatched if layer.kind] or unmatched
    texts = []
    for kind, members in group_by(products, _class).items():
        noun = {"dense": "dense layer", "": "layer"}.get(kind, kind)
        number = f"a {noun}" if len(members) == 1 else f"{len(members)} {noun}s"
        sizes = dict.fromkeys(
            layer.kind.rpartition(" ")[2] for layer in members if "x" in layer.kind
        )
        at = side.index(members[0])
        before = next((layer.name for layer in reversed(side[:at]) if layer.kind), "")
        where = f"after {names.get(before, before)}" if before else "before all others"
        texts.append(f"{number} {word} ({', '.join([*sizes, where])})")
    return texts
