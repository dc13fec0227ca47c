"""Marks that tell series apart by shape as well as by colour."""

from __future__ import annotations

from cnnbench.report.charts.svg import Svg, element

COLOURS = 7
"""Classes c0 to c6, after Okabe and Ito; the style sheet says what they are by day and night."""

_R = 4.0
_SHAPES = (
    "circle",
    f"M{-_R} {-_R}H{_R}V{_R}H{-_R}Z",
    f"M0 {-_R - 1}L{_R + 1} {_R}H{-_R - 1}Z",
    f"M0 {-_R - 1.5}L{_R + 1.5} 0L0 {_R + 1.5}L{-_R - 1.5} 0Z",
    f"M0 {_R + 1}L{_R + 1} {-_R}H{-_R - 1}Z",
    "M-1.5 -5H1.5V-1.5H5V1.5H1.5V5H-1.5V1.5H-5V-1.5H-1.5Z",
    "M-4.5 -2.5L-2.5 -4.5L0 -2L2.5 -4.5L4.5 -2.5L2 0L4.5 2.5L2.5 4.5L0 2L-2.5 4.5L-4.5 2.5L-2 0Z",
    "M-1.5 -5H1.5V5H-1.5Z",
    "M-5 -1.5H5V1.5H-5Z",
    "M0 -5L5 -1.5L3 4.5H-3L-5 -1.5Z",
    "M-5 0L-2.5 -4.5H2.5L5 0L2.5 4.5H-2.5Z",
)
_DASHES = (None, "7 3", "2 3", "9 3 2 3", "12 4", "4 4")


def colour(index: int) -> str:
    """The class of a series' colour."""
    return f"c{index % COLOURS}"


def dashes(index: int) -> str | None:
    """The dashes of a series' line."""
    return _DASHES[index % len(_DASHES)]


def mark(x: float, y: float, index: int, hint: str = "", class_: str = "mark") -> Svg:
    """A mark of series ``index``; no two of the first eleven share a shape.

    Args:
      x, y: its centre.
      index: of the series.
      hint: shown when pointed at.
      class_: besides the colour.
    """
    shape = _SHAPES[index % len(_SHAPES)]
    inside = (element("title", hint),) if hint else ()
    classes = f"{class_} {colour(index)}"
    if shape == "circle":
        return element("circle", *inside, cx=x, cy=y, r=_R, class_=classes)
    place = f"translate({round(x, 1):g} {round(y, 1):g})"
    return element("path", *inside, d=shape, transform=place, class_=classes)
