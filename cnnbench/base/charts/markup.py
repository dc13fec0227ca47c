"""Conversion of matplotlib's SVG: no style attributes, colours as variables, hints as titles."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from xml.etree import ElementTree

from cnnbench.base.text.escape import plain

_SVG = "{http://www.w3.org/2000/svg}"
_HREF = "{http://www.w3.org/1999/xlink}href"


class Hint(NamedTuple):
    """Class of an artist's group in the SVG and its title, or the titles of its marks; "" for none.

    `stop` makes it reachable by keyboard; marks with a text always are.
    """

    kind: str
    texts: str | Sequence[str]
    stop: bool


def element(
    text: str,
    hints: Mapping[str, Hint],
    variables: Mapping[str, str],
    style: str,
    attributes: Mapping[str, str],
) -> str:
    """An SVG element without style attributes.

    Args:
      variables: replacements of attribute values, such as colours.
      style: content of a style element; "" for none.
      attributes: of the element; "_" in a name stands for "-".
    """
    root = ElementTree.fromstring(text)
    for parent in root.iter():
        for child in list(parent):
            if child.tag.rpartition("}")[2] in ("metadata", "style", "clipPath"):
                parent.remove(child)
    stops = _add_hints(root, hints)
    for one in root.iter():
        one.tag = one.tag.removeprefix(_SVG)
        one.text = one.text if one.tag in ("text", "title") else None
        one.tail = None
        _presentation(one, variables)
    shape = root.attrib["viewBox"]
    root.attrib.clear()
    given = {name.replace("_", "-"): plain(value) for name, value in attributes.items()}
    # Parts of an image would be no parts for a screen reader.
    role = "group" if stops else "img"
    root.attrib.update({"class": "chart", "role": role, "viewBox": shape, **given})
    if style:
        sheet = ElementTree.Element("style")
        sheet.text = style
        root.insert(0, sheet)
    return ElementTree.tostring(root, encoding="unicode")


def _presentation(one: ElementTree.Element, variables: Mapping[str, str]) -> None:
    """Replaces styles by presentation attributes, and removes unused ids."""
    for declaration in filter(None, one.attrib.pop("style", "").split(";")):
        name, _, value = (part.strip() for part in declaration.partition(":"))
        if name != "font-family":
            one.set(name, variables.get(value, value))
    one.attrib.pop("clip-path", None)
    if one.tag == "g" and one.attrib.pop("id", "").startswith("xtick_"):
        one.set("class", "tick")
    if one.attrib.get("transform", "").startswith("rotate(-0 "):
        del one.attrib["transform"]
    if _HREF in one.attrib:
        one.set("href", one.attrib.pop(_HREF))
    for name in ("x", "y"):
        if name in one.attrib:
            one.set(name, f"{float(one.attrib[name]):.6g}")
    if "d" in one.attrib:
        numbers = re.sub(r"\d+\.\d+", lambda n: f"{float(n.group()):.2f}", one.attrib["d"])
        one.set("d", " ".join(numbers.split()))


def _add_hints(root: ElementTree.Element, hints: Mapping[str, Hint]) -> int:
    """Adds classes and titles; returns the number of elements with keyboard focus."""
    stops = 0
    for group in list(root.iter(f"{_SVG}g")):
        hint = hints.get(group.attrib.get("id", ""))
        if hint is None:
            continue
        if hint.kind:
            group.set("class", hint.kind)
        if isinstance(hint.texts, str):
            if hint.texts:
                group.insert(0, _title(hint.texts))
            if hint.stop:
                group.set("class", f"{hint.kind} point".strip())
                stops += _reach(group, hint.texts)
            continue
        (marks,) = group.findall(f"{_SVG}g")
        for index, text in enumerate(hint.texts):
            if text:
                wrapped = ElementTree.Element(f"{_SVG}g", {"class": "point"})
                wrapped.extend((_title(text), marks[index]))
                marks[index] = wrapped
                stops += _reach(wrapped, text)
    return stops


def _reach(group: ElementTree.Element, text: str) -> int:
    """Makes a group focusable by keyboard and readable by screen readers."""
    group.attrib.update({"tabindex": "0", "role": "img", "aria-label": plain(text)})
    return 1


def _title(text: str) -> ElementTree.Element:
    title = ElementTree.Element(f"{_SVG}title")
    title.text = plain(text)
    return title
