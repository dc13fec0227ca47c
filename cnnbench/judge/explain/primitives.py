"""Kernels of oneDNN that the sides call differently."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from cnnbench.base.text.numbers import NONE, first_few
from cnnbench.records.explanation import FactChange
from cnnbench.records.step_profile import FORWARD, TO_INPUT, TO_KERNEL, Primitive, StepProfile

_PRODUCTS = ("convolution", "deconvolution", "inner_product", "matmul", "gemm_api")
_DIRECTIONS = {"backward_data": TO_INPUT, "backward_weights": TO_KERNEL}
_MOST = 3


class PrimitiveChange(NamedTuple):
    """Different calls of a `Primitive`, with the calls of both sides in words."""

    name: str
    propagation: str
    fact: FactChange

    @property
    def is_product(self) -> bool:
        """Whether it is a convolution or a matrix product."""
        return self.name in _PRODUCTS

    def is_of(self, directions: Collection[str]) -> bool:
        """Whether operations of one of these directions may call it."""
        if self.propagation.startswith("forward"):
            return FORWARD in directions
        return _DIRECTIONS.get(self.propagation) in (None, *directions)


def primitive_changes(
    base: Sequence[StepProfile], new: Sequence[StepProfile]
) -> list[PrimitiveChange]:
    """Primitives that the sides call differently; empty where a side has no log."""
    before, after = map(_logged, (base, new))
    if before is None or after is None:
        return []
    found = []
    # Conversions of layouts, a consequence of other layouts, come last.
    for key in sorted({*before, *after}, key=lambda key: (key[0] == "reorder", key)):
        texts = _texts(before[key], after[key])
        if texts is not None:
            name = " ".join(filter(None, ("oneDNN", *key)))
            found.append(PrimitiveChange(*key, FactChange(fact=name, base=texts[0], new=texts[1])))
    return found


_Calls = Mapping[tuple[str, str], list[Primitive]]


def _logged(profiles: Iterable[StepProfile]) -> _Calls | None:
    """Calls of the first process that has them, by name and propagation."""
    logs = (one.primitives for one in profiles if one.primitives)
    log = next(logs, None)
    if log is None:
        return None
    found: defaultdict[tuple[str, str], list[Primitive]] = defaultdict(list)
    for one in log:
        found[one.name, one.propagation].append(one)
    return found


def _texts(before: Iterable[Primitive], after: Iterable[Primitive]) -> tuple[str, str] | None:
    """Calls of both sides by kernel, else by layout, whichever differs; None if neither does."""
    kernels = [_counted(side, _kernel) for side in (before, after)]
    if kernels[0] != kernels[1]:
        return _text(kernels[0]), _text(kernels[1])
    layouts = [
        _counted(side, lambda one: f"{_kernel(one)} with {one.layouts}") for side in (before, after)
    ]
    if layouts[0] != layouts[1]:  # without those that both have
        return _text(layouts[0] - layouts[1]), _text(layouts[1] - layouts[0])
    return None


def _counted(calls: Iterable[Primitive], text: Callable[[Primitive], str]) -> Counter[str]:
    found: Counter[str] = Counter()
    for one in calls:
        found[text(one)] += one.calls
    return found


def _kernel(one: Primitive) -> str:
    return " ".join(filter(None, (one.implementation, f"({one.types})" if one.types else "")))


def _text(calls: Counter[str]) -> str:
    """Calls in a step: "2 jit:avx2 (f32), 1 gemm:jit (f32)"."""
    texts = [f"{times} {name}".rstrip() for name, times in calls.most_common()]
    return first_few(texts, _MOST, ", ") if texts else NONE
