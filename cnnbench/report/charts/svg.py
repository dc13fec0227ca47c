"""Elements of SVG as text; whatever goes in is escaped."""

from __future__ import annotations

from cnnbench.text.escape import markup


class Svg(str):
    """Finished SVG, not to be escaped again."""

    __slots__ = ()


def element(name: str, *content: str | Svg, **attributes: object) -> Svg:
    """An element.

    Args:
      name: of the element.
      *content: elements as they are, other text escaped.
      **attributes: underscores stand for dashes; a trailing one is dropped (``class_``).
        None leaves an attribute out; numbers are rounded to what a screen can show.
    """
    inside = "".join(one if isinstance(one, Svg) else markup(one) for one in content)
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Svg(f"<{name}{given}>{inside}</{name}>" if inside else f"<{name}{given}/>")


def join(parts: list[Svg]) -> Svg:
    """Several elements after each other."""
    return Svg("".join(parts))


def text(content: str, x: float, y: float, class_: str, **attributes: object) -> Svg:
    """A line of text."""
    return element("text", content, x=x, y=y, class_=class_, **attributes)


def shorten(content: str, signs: int) -> str:
    """Text that fits, with an ellipsis in its middle where it must: both ends tell."""
    if len(content) <= signs:
        return content
    head = (signs - 1) * 2 // 3
    return f"{content[:head]}…{content[len(content) - (signs - 1 - head) :]}"


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{round(value, 1):g}" if abs(value) < 1e5 else f"{value:.1f}"
    return markup(str(value))
