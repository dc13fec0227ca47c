"""Figures on which charts are drawn: text, lines, axes with scales, and conversion to SVG."""

from __future__ import annotations

import functools
import io
import math
import re
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import resources
from typing import Any, TypeAlias
from xml.etree import ElementTree

from cnnbench.base.charts import HIGHER, Axis
from cnnbench.base.text import binary, plain

TITLE_SIZE, SIZE, TICK_SIZE = 14.0, 12.0, 11.5

CHARACTER = 7.2
"""Width of a character in a wide font, because the fonts of the reader are unknown."""

Hint: TypeAlias = tuple[str, str | Sequence[str], bool]
"""For the group of an artist in the SVG: class, title(s), and whether it can get keyboard focus.

The titles are one text for the group, or one text for each of its marks ("" for none). Marks with a
title can always get keyboard focus.
"""

_SVG = "{http://www.w3.org/2000/svg}"
_HREF = "{http://www.w3.org/1999/xlink}href"
_UNITS = (1.0, 1024.0, 1024.0**2, 1024.0**3, 1024.0**4)


@functools.cache
def theme() -> str:
    """The style sheet that defines the colours."""
    return resources.files("cnnbench.base.charts").joinpath("theme.css").read_text("utf-8")


@functools.cache
def palette() -> dict[str, str]:
    """The colours of light mode, by name."""
    light = theme().partition("}")[0]
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", light))


@contextmanager
def settings(salt: str) -> Iterator[None]:
    """Settings of matplotlib so that equal charts result in equal bytes. `salt` changes the ids."""
    import matplotlib

    settings = {
        "svg.hashsalt": f"cnnbench {plain(salt)}",
        "svg.fonttype": "none",
        "text.parse_math": False,
        "path.simplify": False,
        "font.size": SIZE,
        "text.color": palette()["ink"],
        "lines.solid_joinstyle": "round",
        "lines.scale_dashes": False,
    }
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        # Warnings about characters that the font for measuring does not contain.
        warnings.simplefilter("ignore")
        yield


class Sheet:
    """A figure with charts one below the other, and the hints by group id.

    Positions are relative to the left margin and to the top of the current chart, `top`. `inner`
    (the width) and `height` do not include margins.
    """

    def __init__(self, inner: float, height: float, margin: float, top: float) -> None:
        from matplotlib.figure import Figure

        self.inner = inner
        self.width = inner + 2 * margin
        self.height = height + 2 * margin
        self.figure = Figure(figsize=(self.width / 72, self.height / 72), dpi=72)
        self.figure.patch.set_visible(margin > 0)
        self.hints: dict[str, Hint] = {}
        self._left, self.top = margin, margin + top

    def _place(self, x: float, y: float) -> tuple[float, float]:
        return (self._left + x) / self.width, 1 - (self.top + y) / self.height

    def x_of(self, axes: Any, value: float) -> float:
        """The horizontal position of a value on the x axis."""
        return float(axes.transData.transform((value, axes.get_ylim()[0]))[0]) - self._left

    def text(
        self,
        x: float,
        y: float,
        content: str,
        *,
        size: float = SIZE,
        colour: str = "ink",
        bold: bool = False,
        align: str = "left",
        kind: str = "",
    ) -> None:
        """Adds a line of text with its baseline at y. `kind` is the same as in `mark`."""
        weight = "bold" if bold else "normal"
        style: Any = {"fontsize": size, "color": palette()[colour], "fontweight": weight}
        where = self._place(x, y)
        artist = self.figure.text(*where, plain(content), ha=align, va="baseline", **style)
        if kind:
            self.mark(artist, kind)

    def line(self, xs: Sequence[float], y: float, **style: Any) -> None:
        """Draws a horizontal line, or marks, outside the axes."""
        from matplotlib.lines import Line2D

        places = [self._place(x, y) for x in xs]
        self.figure.add_artist(Line2D(*zip(*places, strict=True), **style))

    def axes(self, left: float, right: float, top: float, bottom: float) -> Any:
        """Adds axes without a frame between the given positions."""
        x, y = self._place(left, bottom)
        size = ((right - left) / self.width, (bottom - top) / self.height)
        axes = self.figure.add_axes((x, y, *size), facecolor="none")
        axes.spines[:].set_visible(False)
        axes.set_axisbelow(True)
        axes.grid(True, color=palette()["rule"], linewidth=1)
        axes.tick_params(length=0, pad=6, labelsize=TICK_SIZE, labelcolor=palette()["soft"])
        return axes

    def mark(
        self, artist: Any, kind: str = "", texts: str | Sequence[str] = "", *, stop: bool = False
    ) -> None:
        """Sets an artist's class and hints in the SVG.

        `texts` is shown on hover: one text for the artist, or one for each of its marks. With
        `stop`, the artist can get keyboard focus. Marks with a text always can.
        """
        key = f"hint{len(self.hints)}"
        self.hints[key] = (kind, texts, stop)
        artist.set_gid(key)

    def svg(self, style: str = "", **attributes: str) -> str:
        """The SVG element, without style attributes, and with variables as colours.

        Args:
          style: content of a style element; "" for no element.
          attributes: attributes of the element; "_" in a name is replaced by "-".
        """
        buffer = io.StringIO()
        self.figure.savefig(buffer, format="svg", metadata={"Date": None})
        # The colour is also given for pages whose policy does not allow styles.
        variables = {colour: f"var(--{name},{colour})" for name, colour in palette().items()}
        root = ElementTree.fromstring(buffer.getvalue())
        for parent in root.iter():
            for child in list(parent):
                if child.tag.rpartition("}")[2] in ("metadata", "style", "clipPath"):
                    parent.remove(child)
        _add_hints(root, self.hints)
        for element in root.iter():
            element.tag = element.tag.removeprefix(_SVG)
            element.text = element.text if element.tag in ("text", "title") else None
            element.tail = None
            _presentation(element, variables)
        shape = root.attrib["viewBox"]
        root.attrib.clear()
        root_attributes = {
            name.replace("_", "-"): plain(value) for name, value in attributes.items()
        }
        # Screen readers ignore the parts of an image, but they read the parts of a group.
        role = "img" if root.find(".//*[@tabindex]") is None else "group"
        root.attrib.update({"class": "chart", "role": role, "viewBox": shape, **root_attributes})
        if style:
            sheet = ElementTree.Element("style")
            sheet.text = style
            root.insert(0, sheet)
        return ElementTree.tostring(root, encoding="unicode")


def wrapped_note(note: str) -> list[str]:
    """Breaks a note into lines."""
    return textwrap.wrap(plain(note), 84)


def wrapped(content: str, characters: int, most: int) -> list[str]:
    """Breaks a label into at most `most` lines. The last line is shortened if necessary."""
    lines = textwrap.wrap(plain(content), characters, break_on_hyphens=False) or [""]
    if len(lines) <= most:
        return lines
    return [*lines[: most - 1], shortened(" ".join(lines[most - 1 :]), characters)]


def shortened(content: str, characters: int) -> str:
    """Shortens a text to `characters` characters, with an ellipsis in the middle."""
    if len(content) <= characters:
        return content
    head = (characters - 1) * 2 // 3
    return f"{content[:head]}…{content[len(content) - (characters - 1 - head) :]}"


def fitting(width: float) -> int:
    """Number of characters of normal size that fit into a width."""
    return max(4, int(width / CHARACTER))


def x_axis(sheet: Sheet, axes: Any, axis: Axis, values: Sequence[float], bottom: float) -> None:
    """Draws the scale, grid, ticks and caption of a horizontal axis."""
    low, high = limits(axis, values)
    if axis.log:
        axes.set_xscale("log", base=axis.base)
    axes.set_xlim(low, high)
    ticks, texts = ticks_of(axis, low, high, 6)
    box = axes.get_position()
    start, end = box.x0 * sheet.width, box.x1 * sheet.width
    free, shown = 0.0, []
    places = axes.transData.transform([(tick, low) for tick in ticks])[:, 0]
    for tick, x, text in zip(ticks, places, texts, strict=True):
        half = len(text) * CHARACTER / 2
        place = min(max(x, half), sheet.width - half)
        # Centred texts at the ends would be cut off at the border of the drawing.
        align = "center" if place == x else "left" if place > x else "right"
        if place - half >= free:  # does not overlap its neighbour
            shown.append((tick, text, align))
            free = place + half + 8
        elif not axis.tick_texts:  # A name of a point without enough space gets no tick.
            shown.append((tick, "", "center"))
    axes.set_xticks([tick for tick, _, _ in shown], [text for _, text, _ in shown], minor=False)
    axes.set_xticks([], minor=True)
    for label, (_, _, align) in zip(axes.get_xticklabels(), shown, strict=True):
        label.set_horizontalalignment(align)
    axes.spines["bottom"].set(visible=True, color=palette()["soft"], linewidth=1)
    title = caption(axis, sheet.inner)
    half = len(title) * CHARACTER / 2
    middle = min(max((start + end) / 2 - sheet._left, half), sheet.inner - half)
    sheet.text(middle, bottom + 36, title, colour="soft", align="center")


def y_axis(
    sheet: Sheet, axes: Any, axis: Axis, values: Sequence[float], top: float, room: float
) -> None:
    """Draws a vertical axis and its caption. `room` is the share of the height for notes."""
    low, high = limits(axis, values)
    if axis.limit is None:
        free = room / (1 - room)
        high = high * (high / low) ** free if axis.log else high + (high - low) * free
    if axis.log:
        axes.set_yscale("log", base=axis.base)
    axes.set_ylim(low, high)
    axes.set_yticks(*ticks_of(axis, low, high, 5), minor=False)
    axes.set_yticks([], minor=True)
    sheet.text(0, top - 10, caption(axis, sheet.inner), colour="soft")


def caption(axis: Axis, width: float) -> str:
    """The longest form of the axis caption that fits into a width."""
    most, arrow = fitting(width), "↑" if axis.better == HIGHER else "↓"
    texts = (axis.caption, f"{axis.label}, {arrow} better")
    return next((text for text in texts if len(text) <= most), shortened(axis.label, most))


def limits(axis: Axis, values: Sequence[float]) -> tuple[float, float]:
    """Ends of an axis that shows all values with some space around them."""
    known = list(values) or [1.0]
    if axis.limit is not None:
        known = [min(value, axis.limit) for value in known]
    if axis.least_span:
        middle = (min(known) + max(known)) / 2
        known += [middle * (1 + sign * axis.least_span / 2) for sign in (-1, 1)]
    low, high = min(known), max(known)
    if axis.log:
        room = (high / low) ** 0.05 if high > low else math.sqrt(2.0)
        return low / room, high * room
    if axis.zero:
        low = min(0.0, low)
    span = high - low or abs(high) * 0.1 or 1.0
    return (low if axis.zero and low == 0.0 else low - 0.05 * span), high + 0.05 * span


def ticks_of(axis: Axis, low: float, high: float, about: int) -> tuple[list[float], list[str]]:
    """Ticks within the limits, and the texts for them."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    unit = max((u for u in _UNITS if u <= high), default=1.0) if axis.format == "bytes" else 1.0
    ticks: Sequence[float] = axis.ticks
    if not ticks and axis.log:
        # With powers only, most of a short axis would have no ticks.
        factors = (1.0, 2.0, 5.0) if axis.base == 10 and 5 < high / low < 1000 else (1.0,)
        powers = LogLocator(axis.base, factors, numticks=about).tick_values(low, high)
        ticks = [float(tick) for tick in powers if low <= tick <= high]
    if len(ticks) < 2 and not axis.ticks:
        linear = MaxNLocator(about, steps=[1, 2, 2.5, 5, 10])
        ticks = [tick * unit for tick in linear.tick_values(low / unit, high / unit)]
    texts = axis.tick_texts or [_tick_text(axis.format, value) for value in ticks]
    kept = [pair for pair in zip(ticks, texts, strict=True) if low <= pair[0] <= high]
    return [value for value, _ in kept], [plain(text) for _, text in kept]


def _tick_text(format: str, value: float) -> str:
    if format == "bytes":
        return binary(value)
    if format == "percent":
        return f"{100 * value:.4g} %"
    if value and (abs(value) >= 1e7 or abs(value) < 1e-4):
        return f"{value:.3g}"
    return f"{value:,.6g}"


def _presentation(element: ElementTree.Element, variables: Mapping[str, str]) -> None:
    """Replaces style attributes by presentation attributes, and removes unused ids."""
    # matplotlib 3.8 and 3.9 write "font: 700 12px 'DejaVu Sans'", which is not a valid attribute.
    short = r"font: (?:(\d+) )?([\d.]+px)[^;]*"
    style = re.sub(short, r"font-weight: \1; font-size: \2", element.attrib.pop("style", ""))
    for declaration in style.split(";"):
        name, _, value = (part.strip() for part in declaration.partition(":"))
        if value and name != "font-family":
            element.set(name, variables.get(value, value))
    element.attrib.pop("clip-path", None)
    if element.tag == "g" and element.attrib.pop("id", "").startswith("xtick_"):
        element.set("class", "tick")
    if element.attrib.get("transform", "").startswith("rotate(-0 "):
        del element.attrib["transform"]
    if _HREF in element.attrib:
        element.set("href", element.attrib.pop(_HREF))
    for name in ("x", "y"):
        if name in element.attrib:
            element.set(name, f"{float(element.attrib[name]):.6g}")
    if "d" in element.attrib:
        numbers = re.sub(r"\d+\.\d+", lambda n: f"{float(n.group()):.2f}", element.attrib["d"])
        element.set("d", " ".join(numbers.split()))


def _add_hints(root: ElementTree.Element, hints: Mapping[str, Hint]) -> None:
    """Adds classes, titles and keyboard focus to the groups of artists."""
    for group in list(root.iter(f"{_SVG}g")):
        kind, texts, stop = hints.get(group.attrib.get("id", ""), ("", "", False))
        if kind:
            group.set("class", kind)
        if isinstance(texts, str):
            if texts:
                group.insert(0, _title(texts))
            if stop:
                group.set("class", f"{kind} point".strip())
                _make_focusable(group, texts)
            continue
        (marks,) = group.findall(f"{_SVG}g")
        for index, text in enumerate(texts):
            if text:
                wrapped = ElementTree.Element(f"{_SVG}g", {"class": "point"})
                wrapped.extend((_title(text), marks[index]))
                marks[index] = wrapped
                _make_focusable(wrapped, text)


def _make_focusable(group: ElementTree.Element, text: str) -> None:
    """Lets a group get keyboard focus and be read by screen readers."""
    group.attrib.update({"tabindex": "0", "role": "img", "aria-label": plain(text)})


def _title(text: str) -> ElementTree.Element:
    title = ElementTree.Element(f"{_SVG}title")
    title.text = plain(text)
    return title
