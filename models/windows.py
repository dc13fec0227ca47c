"""Positions of windows in convolution and pooling layers."""

from __future__ import annotations

import dataclasses
from typing import Literal, cast, get_args

from cnnbench.errors import UsageError

Padding = Literal["SAME", "VALID", "SAME_RESNET"]
Pair = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class SlidingWindow:
    """Windows of a convolution or pooling over an image. Every pair is (vertical, horizontal).

    First, ``zeros`` rows and columns of zeros, ((top, bottom), (left, right)), are added to the
    image: none unless the padding is SAME_RESNET. Then ``padding`` is applied.
    """

    size: Pair
    stride: Pair
    padding: Literal["SAME", "VALID"]
    zeros: tuple[Pair, Pair]
    output: Pair

    @property
    def needs_explicit_padding(self) -> bool:
        """Whether zeros must be added to the image before the operation, as for SAME_RESNET."""
        return any(any(pair) for pair in self.zeros)

    @classmethod
    def make(
        cls, image: Pair, size: int | Pair, stride: int | Pair, padding: Padding
    ) -> SlidingWindow:
        """Computes padding and output size of windows over an image.

        A single number is used for both directions. ``SAME_RESNET`` is SAME at stride 1. At other
        strides, it adds (k - 1) // 2 zeros before and k // 2 zeros after, so that the position of
        the windows does not depend on the input size.
        """
        if padding not in get_args(Padding):
            raise UsageError(
                f"padding must be one of {', '.join(get_args(Padding))}, not {padding!r}"
            )
        size = (size, size) if isinstance(size, int) else size
        stride = (stride, stride) if isinstance(stride, int) else stride
        if min(*size, *stride) < 1:
            raise UsageError(f"window {size} and stride {stride} must be at least 1")
        zeros: tuple[Pair, Pair] = ((0, 0), (0, 0))
        mode = padding
        if padding == "SAME_RESNET":
            mode = "SAME" if max(stride) == 1 else "VALID"
            if mode == "VALID":
                zeros = cast(tuple[Pair, Pair], tuple(((k - 1) // 2, k // 2) for k in size))
        output = tuple(
            -(-n // s) if mode == "SAME" else (n + sum(z) - k) // s + 1
            for n, k, s, z in zip(image, size, stride, zeros, strict=True)
        )
        if min(output) < 1:
            raise UsageError(f"a {size} window does not fit a {image} image without padding")
        return cls(size, stride, cast(Literal["SAME", "VALID"], mode), zeros, cast(Pair, output))
