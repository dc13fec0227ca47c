"""Finds the oneDNN primitives, such as convolutions, that A and B call differently."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from cnnbench.base.stats import group_by
from cnnbench.base.text import NONE, first_few
from cnnbench.records.explanation import FactChange
from cnnbench.records.profiles import FORWARD, TO_INPUT, TO_KERNEL, Primitive, StepProfile

_PRODUCTS = ("convolution", "deconvolution", "inner_product", "matmul", "gemm_api")
_DIRECTIONS = {"backward_data": TO_INPUT, "backward_weights": TO_KERNEL}
_MOST = 3


class PrimitiveChange(NamedTuple):
    """A oneDNN primitive, such as a convolution, whose kernels or layouts differ."""

    name: str
    propagation: str
    fact: FactChange

    @property
    def is_product(self) -> bool:
        """Whether the oneDNN primitive is a convolution or a matrix product."""
        return self.name in _PRODUCTS

    def may_belong_to(self, directions: Collection[str]) -> bool:
        """Whether operations in one of the given directions (forward, gradient of the input,
        gradient of the kernel) may call the primitive.
        """
        if self.propagation.startswith("forward"):
            return FORWARD in directions
        return _DIRECTIONS.get(self.propagation) in (None, *directions)


def primitive_changes(
    base: Sequence[StepProfile], new: Sequence[StepProfile]
) -> list[PrimitiveChange]:
    """Returns the oneDNN primitives that A and B call differently; none without both logs."""
    before, after = map(_logged_primitives, (base, new))
    if before is None or after is None:
        return []
    changed = []
    # oneDNN reorders are last, because they follow from the layouts of other primitives.
    for key in sorted({*before, *after}, key=lambda key: (key[0] == "reorder", key)):
        texts = _call_texts(before.get(key, ()), after.get(key, ()))
        if texts is not None:
            name = " ".join(filter(None, ("oneDNN", *key)))
            fact = FactChange(fact=name, base=texts[0], new=texts[1])
            changed.append(PrimitiveChange(*key, fact))
    return changed


def _logged_primitives(
    profiles: Iterable[StepProfile],
) -> dict[tuple[str, str], list[Primitive]] | None:
    """Returns the oneDNN calls of the first process that has a log, by name and propagation kind;
    None if no process has a log.
    """
    log = next((profile.primitives for profile in profiles if profile.primitives), None)
    return None if log is None else group_by(log, lambda call: (call.name, call.propagation))


def _call_texts(before: Iterable[Primitive], after: Iterable[Primitive]) -> tuple[str, str] | None:
    """Returns texts about the oneDNN calls of A and of B: only the kernels if they differ,
    otherwise kernels with layouts. Returns None if all calls are equal.
    """
    a, b = (_call_counts(side, _kernel_text) for side in (before, after))
    if a != b:
        return _calls_text(a), _calls_text(b)
    a, b = (_call_counts(side, _layout_text) for side in (before, after))
    # Only layouts that differ between A and B are shown.
    return None if a == b else (_calls_text(a - b), _calls_text(b - a))


def _call_counts(calls: Iterable[Primitive], text: Callable[[Primitive], str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for call in calls:
        counts[text(call)] += call.calls
    return counts


def _kernel_text(primitive: Primitive) -> str:
    types = f"({primitive.types})" if primitive.types else ""
    return " ".join(filter(None, (primitive.implementation, types)))


def _layout_text(primitive: Primitive) -> str:
    return f"{_kernel_text(primitive)} with {primitive.layouts}"


def _calls_text(calls: Counter[str]) -> str:
    """Returns text about oneDNN calls in a step, such as "2 jit:avx2 (f32), 1 gemm:jit (f32)"."""
    texts = [f"{times} {name}".rstrip() for name, times in calls.most_common()]
    return first_few(texts, _MOST, ", ") if texts else NONE
