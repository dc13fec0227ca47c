"""Figures on which charts are drawn: texts, axes without a scale, and their conversion to SVG.

Positions are in units of about one pixel, from the top left. Colours are the light colours in
theme.css. In SVG, they are replaced by the variables of theme.css, so that charts adapt to light or
dark mode. SVG has no style attributes, because a strict content security policy does not allow
them.
"""

from __future__ import annotations

import functools
import io
import itertools
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import resources
from typing import Any, TypeAlias
from xml.etree import ElementTree

from cnnbench.base.escapes import to_plain_line
from cnnbench.base.text import cut_to_width, text_width, wrap_words

TITLE_SIZE, SIZE, TICK_SIZE = 14.0, 12.0, 11.5

CHARACTER = 7.2
"""Width of a character in a wide font, because the fonts of the reader are unknown."""

Hint: TypeAlias = tuple[str, str | Sequence[str], bool, Sequence[str]]
"""For the group of an artist in the SVG: class, title(s), whether it can get keyboard focus, and
the addresses to which its marks lead.

The titles are one text for the group, or one text for each of its marks ("" for none). Marks with a
title can always get keyboard focus.
"""

_SVG = "{http://www.w3.org/2000/svg}"
_HREF = "{http://www.w3.org/1999/xlink}href"


@functools.cache
def theme_css() -> str:
    """The CSS style sheet that defines the colours of charts and pages."""
    return resources.files("cnnbench.base.charts").joinpath("theme.css").read_text("utf-8")


@functools.cache
def palette() -> dict[str, str]:
    """The colours of light mode in `theme_css`: the name of each colour, and its value such as
    "#0b6fb8".
    """
    light = theme_css().partition("}")[0]
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", light))


_FALLBACK_FONTS = (
    "Noto Sans CJK JP, Noto Sans CJK SC, Noto Sans CJK KR, Noto Sans JP, Source Han Sans JP, "
    "IPAexGothic, IPAGothic, TakaoGothic, VL Gothic, WenQuanYi Zen Hei, WenQuanYi Micro Hei, "
    "Droid Sans Fallback, NanumGothic, Hiragino Sans, PingFang SC, Yu Gothic, Microsoft YaHei, "
    "Malgun Gothic, Arial Unicode MS, Unifont"
)
"""Fonts with characters that matplotlib's own font lacks, such as those of East Asian scripts."""


def fallback_fonts() -> list[str]:
    """The installed fonts with characters that matplotlib's own font lacks."""
    _hide_warnings()
    from matplotlib.font_manager import fontManager

    installed = {font.name for font in fontManager.ttflist}
    return [name for name in _FALLBACK_FONTS.split(", ") if name in installed]


def _hide_warnings() -> None:
    """Hides the warnings of matplotlib, such as two lines about its cache if there is no home."""
    import logging

    logging.getLogger("matplotlib").setLevel(logging.ERROR)


@contextmanager
def reproducible_settings(salt: str, fonts: Sequence[str] = ()) -> Iterator[None]:
    """Context manager that sets matplotlib's options so that equal charts are drawn as equal bytes.

    Ids in the SVG depend on `salt`. `fonts` are used for characters that the usual font lacks.
    """
    _hide_warnings()
    import matplotlib

    settings = {
        "svg.hashsalt": f"cnnbench {to_plain_line(salt)}",
        "svg.fonttype": "none",
        "font.family": ["sans-serif", *fonts],
        "text.parse_math": False,
        "path.simplify": False,
        "font.size": SIZE,
        "text.color": palette()["ink"],
        "lines.solid_joinstyle": "round",
        "lines.scale_dashes": False,
    }
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        # matplotlib measures texts with its own font, and would warn of each character that this
        # font lacks.
        warnings.simplefilter("ignore")
        yield


class ChartFigure:
    """A matplotlib figure with charts one below the other. `hints` contains the hover texts of the
    charts by SVG group id.

    Positions are relative to the left margin, `left`, and to the top of the current chart, `top`.
    `inner` (the width) and `height` do not include margins.
    """

    def __init__(self, inner: float, height: float, margin: float, top: float) -> None:
        from matplotlib.figure import Figure

        self.inner = inner
        self.width = inner + 2 * margin
        self.height = height + 2 * margin
        self.figure = Figure(figsize=(self.width / 72, self.height / 72), dpi=72)
        self.figure.patch.set_visible(margin > 0)
        self.hints: dict[str, Hint] = {}
        self.left, self.top = margin, margin + top

    def _to_fractions(self, x: float, y: float) -> tuple[float, float]:
        return (self.left + x) / self.width, 1 - (self.top + y) / self.height

    def x_position(self, axes: Any, value: float) -> float:
        """Horizontal position of a value on the x axis of `axes`, in pixels from the left
        margin.
        """
        return float(axes.transData.transform((value, axes.get_ylim()[0]))[0]) - self.left

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
        """Adds a line of text whose baseline is at `y`. In the SVG, the text has the CSS class
        `kind`.
        """
        weight = "bold" if bold else "normal"
        style: Any = {"fontsize": size, "color": palette()[colour], "fontweight": weight}
        where = self._to_fractions(x, y)
        artist = self.figure.text(*where, to_plain_line(content), ha=align, va="baseline", **style)
        if kind:
            self.set_svg_hints(artist, kind)

    def line(self, xs: Sequence[float], y: float, **style: Any) -> None:
        """Draws a horizontal line, or several marks at the same height, outside of the axes (for
        example, in a legend).
        """
        from matplotlib.lines import Line2D

        places = [self._to_fractions(x, y) for x in xs]
        self.figure.add_artist(Line2D(*zip(*places, strict=True), **style))

    def axes(self, left: float, right: float, top: float, bottom: float) -> Any:
        """Adds matplotlib axes without a frame, whose edges are at the given positions."""
        x, y = self._to_fractions(left, bottom)
        size = ((right - left) / self.width, (bottom - top) / self.height)
        axes = self.figure.add_axes((x, y, *size), facecolor="none")
        axes.spines[:].set_visible(False)
        axes.set_axisbelow(True)
        axes.grid(True, color=palette()["rule"], linewidth=1)
        axes.tick_params(length=0, pad=6, labelsize=TICK_SIZE, labelcolor=palette()["soft"])
        return axes

    def set_svg_hints(
        self,
        artist: Any,
        kind: str = "",
        texts: str | Sequence[str] = "",
        *,
        stop: bool = False,
        links: Sequence[str] = (),
    ) -> None:
        """Sets the CSS class, the hover texts and the links that the SVG contains for a matplotlib
        artist.

        `texts` is shown on hover: one text for the artist, or one for each of its marks. With
        `stop`, the artist can get keyboard focus. Marks with a text always can. `links` are the
        addresses to which the marks with a text lead, "" for none.
        """
        key = f"hint{len(self.hints)}"
        self.hints[key] = (kind, texts, stop, links)
        artist.set_gid(key)

    def to_svg_element(self, style: str = "", **attributes: str) -> str:
        """Converts the figure to an SVG element without style attributes, in which colours are CSS
        variables.

        Args:
          style: content of a style element; "" for no element.
          attributes: attributes of the element; "_" in a name is replaced by "-".
        """
        buffer = io.StringIO()
        self.figure.savefig(buffer, format="svg", metadata={"Date": None})
        # If the content security policy of a page forbids style sheets, browsers use the literal
        # colour.
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
            _move_styles(element, variables)
        shape = root.attrib["viewBox"]
        root.attrib.clear()
        root_attributes = {
            name.replace("_", "-"): to_plain_line(value) for name, value in attributes.items()
        }
        # If charts have elements with hover texts, the role must be "group": screen readers skip
        # the elements of an "img".
        role = "img" if root.find(".//*[@tabindex]") is None else "group"
        root.attrib.update({"class": "chart", "role": role, "viewBox": shape, **root_attributes})
        if style:
            sheet = ElementTree.Element("style")
            sheet.text = style
            root.insert(0, sheet)
        return ElementTree.tostring(root, encoding="unicode")


def wrap_note(note: str) -> list[str]:
    """Breaks a note below a chart into lines."""
    return wrap_words(to_plain_line(note), 84)


def wrap_label(content: str, characters: int, most: int) -> list[str]:
    """Breaks a label into at most `most` lines. If necessary, the last line is shortened."""
    lines = wrap_words(to_plain_line(content), characters, break_on_hyphens=False) or [""]
    if len(lines) <= most:
        return lines
    return [*lines[: most - 1], shorten_text(" ".join(lines[most - 1 :]), characters)]


def shorten_text(content: str, characters: int) -> str:
    """Shortens a text to a number of characters: an ellipsis replaces a part after the first two
    thirds.
    """
    if text_width(content) <= characters:
        return content
    head = cut_to_width(content, (characters - 1) * 2 // 3)
    end = cut_to_width(content[::-1], characters - 1 - text_width(head))
    return f"{head}…{end[::-1]}"


def pixel_width(content: str) -> float:
    """Width of a text of normal size in pixels, if the font is wide."""
    return CHARACTER * text_width(content)


def characters_in_width(width: float) -> int:
    """Number of characters of normal size that fit into a width in pixels."""
    return max(4, int(width / CHARACTER + 1e-6))


def _move_styles(element: ElementTree.Element, variables: Mapping[str, str]) -> None:
    """Replaces style attributes of an SVG element by presentation attributes, and removes unused
    ids.
    """
    # matplotlib 3.8 and 3.9 write "font: 700 12px 'DejaVu Sans'", which is valid as a style but not
    # as an attribute.
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
    """Adds CSS classes, hover texts and keyboard focus to the SVG groups that matplotlib artists
    become.
    """
    for group in list(root.iter(f"{_SVG}g")):
        kind, texts, stop, links = hints.get(group.attrib.get("id", ""), ("", "", False, ()))
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
        for index, (text, link) in enumerate(itertools.zip_longest(texts, links, fillvalue="")):
            if text:
                wrapped = ElementTree.Element(f"{_SVG}g", {"class": "point"})
                wrapped.extend((_title(text), marks[index]))
                marks[index] = wrapped
                _make_focusable(wrapped, text)
                if _ADDRESS.match(link):
                    wrapped.tag = f"{_SVG}a"
                    del wrapped.attrib["role"]
                    address = {"href": to_plain_line(link), "rel": "noopener noreferrer"}
                    wrapped.attrib.update(address)


def _make_focusable(group: ElementTree.Element, text: str) -> None:
    """Makes an SVG group accessible by keyboard and by screen readers, which read `text`."""
    group.attrib.update({"tabindex": "0", "role": "img", "aria-label": to_plain_line(text)})


_ADDRESS = re.compile("https?://")


def _title(text: str) -> ElementTree.Element:
    title = ElementTree.Element(f"{_SVG}title")
    title.text = to_plain_line(text)
    return title
