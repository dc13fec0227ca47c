"""Line charts, with a legend below that names every curve with its mark."""

from __future__ import annotations

from cnnbench.report.charts import frame, marks
from cnnbench.report.charts.scale import Scale, scale_for
from cnnbench.report.charts.spec import Axis, Event, Lines, Series
from cnnbench.report.charts.svg import Svg, element, join, shorten, text

_PLOT = 230.0
_TOP = frame.TOP + 22.0
_LEGEND_MARK = 30.0


def draw(chart: Lines) -> Svg:
    """The chart as SVG."""
    bottom = _TOP + _PLOT
    points = [point for one in chart.series for point in one.points]
    xs = [x for x, _ in points] + [event.x for event in chart.events]
    ys = [y for _, y in points]
    ys += [end for one in chart.series for span in one.spans if span is not None for end in span]
    if chart.y.limit is not None:
        ys = [min(y, chart.y.limit) for y in ys]
    across = _scale(chart.x, xs, frame.LEFT, frame.WIDTH - frame.RIGHT)
    upward = _scale(chart.y, ys, bottom, _TOP)
    parts: list[Svg] = []
    if chart.shaded is not None:
        parts += _shaded(chart.shaded, across, bottom)
    parts += frame.y_axis(chart.y, upward, frame.LEFT, frame.WIDTH - frame.RIGHT)
    parts += frame.x_axis(chart.x, across, _TOP, bottom)
    for event in chart.events:
        parts += _event(event, across, bottom)
    index = 0
    keys: list[Svg] = []
    foot = bottom + frame.AXIS_HEIGHT + 12
    for one in chart.series:
        parts += _curve(one, index, across, upward)
        keys.append(_key(one, index, foot + len(keys) * frame.LINE))
        index += not one.reference
    parts += keys
    height = foot + len(keys) * frame.LINE - 6
    parts += frame.note(chart.note, height + 8)
    description = f"{chart.y.caption} over {chart.x.caption}"
    return frame.document(chart.title, description, height + frame.note_height(chart.note), parts)


def _scale(axis: Axis, values: list[float], start: float, end: float) -> Scale:
    if axis.least_span and values:
        middle = (min(values) + max(values)) / 2
        values = [*values, *(middle * (1 + sign * axis.least_span / 2) for sign in (-1, 1))]
    return scale_for(values, start, end, log=axis.log, base=axis.base, zero=axis.zero)


def _event(event: Event, across: Scale, bottom: float) -> list[Svg]:
    x = across(event.x)
    look = "event gain" if event.gain else "event"
    title = element("title", event.label)
    parts = [element("line", title, x1=x, x2=x, y1=_TOP, y2=bottom, class_=look)]
    if event.mark:
        # On the side that has more room.
        left = x > (across.start + across.end) / 2
        place, side = (x - 7, "note end") if left else (x + 7, "note")
        parts.append(text(event.mark, place, _TOP + 12, side))
    return parts


def _shaded(shaded: tuple[float, float, str], across: Scale, bottom: float) -> list[Svg]:
    first, last, label = shaded
    left, right = max(across(first), across.start), min(across(last), across.end)
    return [
        element("rect", x=left, y=_TOP, width=right - left, height=bottom - _TOP, class_="shade"),
        text(label, left + 3, _TOP + 12, "note"),
    ]


def _curve(one: Series, index: int, across: Scale, upward: Scale) -> list[Svg]:
    parts: list[Svg] = []
    places = [(across(x), max(upward(y), upward.end)) for x, y in one.points]
    if one.line and len(places) > 1:
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        look = "line reference" if one.reference else f"line {marks.colour(index)}"
        dashes = None if one.reference else marks.dashes(index)
        title = element("title", one.name)
        parts.append(element("polyline", title, points=drawn, class_=look, stroke_dasharray=dashes))
    for (x, _), span in zip(places, one.spans, strict=False):
        if span is not None:
            low, high = upward(span[0]), max(upward(span[1]), upward.end)
            parts.append(
                element(
                    "line", x1=x, x2=x, y1=low, y2=high, class_=f"whisker {marks.colour(index)}"
                )
            )
    if not one.marks and not one.reference and places:
        # One mark is enough to tell which of the curves this is.
        parts.append(marks.mark(*places[-1], index))
    hints = one.hints or ("",) * len(places)
    for (x, y), (_, value), hint in zip(places, one.points, hints, strict=True):
        if value > upward.high:
            parts.append(_beyond(x, upward.end, index, hint))
        elif one.marks and not one.reference:
            parts.append(marks.mark(x, y, index, hint))
    return parts


def _beyond(x: float, top: float, index: int, hint: str) -> Svg:
    """An arrow at the upper edge for a value above it."""
    inside = (element("title", hint),) if hint else ()
    place = f"translate({x:.1f} {top:.1f})"
    shape = "M0 -7L4 0H-4Z"
    classes = f"mark {marks.colour(index)}"
    return element("path", *inside, d=shape, transform=place, class_=classes)


def _key(one: Series, index: int, y: float) -> Svg:
    look = "line reference" if one.reference else f"line {marks.colour(index)}"
    parts = []
    if one.line:
        parts.append(
            element(
                "line",
                x1=2.0,
                x2=_LEGEND_MARK,
                y1=y - 4,
                y2=y - 4,
                class_=look,
                stroke_dasharray=None if one.reference else marks.dashes(index),
            )
        )
    if not one.reference:
        parts.append(marks.mark((2 + _LEGEND_MARK) / 2, y - 4, index))
    room = frame.fitting(frame.WIDTH - _LEGEND_MARK - 10)
    parts.append(text(shorten(one.name, room), _LEGEND_MARK + 8, y, "label"))
    return element("g", element("title", one.name), join(parts))
