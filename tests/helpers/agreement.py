"""Numbers that remember where they come from, through all that is computed and written of them.

While `tracked` is on, numbers in fields of results (dataclasses of judgements and campaigns) are
`Float` and `Integer`, subclasses that behave like plain numbers. A number computed from them knows
its operands, and a text formatted from one begins with a letter that no output has and ends with
another. Writers need not know about it. A `Page` is a text without these letters, with the numbers
in it; `faults` says which of its digits do not follow from the document.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import html
import itertools
import operator
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from html.parser import HTMLParser
from typing import Any

import pytest

from cnnbench.base import tables
from cnnbench.base import text as numbers
from cnnbench.judge.compare import estimate
from cnnbench.records import codec

_FIRST, _LAST, _END = 0x20000, 0x2A000, "㐀"  # letters, which every escape leaves as they are
_MARK = re.compile(f"([{chr(_FIRST)}-{chr(_LAST)}]|{_END})")

_RESULTS = ("cnnbench.judge.", "cnnbench.records.campaigns", "cnnbench.records.explanation")
_RESULTS += ("cnnbench.records.profiles", "cnnbench.records.roofline")
_RESULTS += ("cnnbench.base.levels", "cnnbench.base.stats", "cnnbench.campaigns.bisect")
_RESULTS += tuple(f"cnnbench.campaigns.tune.{name}" for name in ("bench", "final", "race"))
_NO_RESULTS = ("cnnbench.judge.compare.configuration",)
_MEASURED = ("ProfiledPart", "ProfiledSpan", "ProfiledLayer", "Primitive", "StepProfile")
"""Classes of measurements: what is computed from them begins as a value of a result."""

_MOST_ITEMS = 400

Expression = tuple[Any, ...]
"""("leaf", number of the leaf), or a function with its operands: expressions and constants."""


@dataclass(frozen=True)
class Origin:
    """What a number was computed from, and the names of the fields that its leaves were in."""

    expression: Expression

    def __repr__(self) -> str:
        return _shown(self.expression)


_leaves: list[str] = []
_formats: dict[tuple[Expression, str | Callable[[Any], str]], int] = {}


def _shown(one: Any) -> str:
    if not _is_expression(one):
        return repr(one)
    if one[0] == "leaf":
        return _leaves[one[1]]
    if one[0] == "items":
        return f"number of {_lists[one[1]]!r}"[:100]
    return f"{getattr(one[0], '__name__', one[0])}({', '.join(map(_shown, one[1:]))})"


_SOURCES = ("leaf", "items")


def _is_expression(one: Any) -> bool:
    return isinstance(one, tuple) and bool(one) and (one[0] in _SOURCES or callable(one[0]))


def _plain(value: Any) -> Any:
    if isinstance(value, Float):
        return float(value)
    return int(value) if isinstance(value, Integer) else value


def _operand(value: Any) -> Any:
    return value.origin if isinstance(value, (Float, Integer)) else value


def _following(value: Any, expression: Expression) -> Any:
    """A number with its origin; other results are left as they are."""
    if type(value) is float:
        found: Any = Float(value)
    elif type(value) is int:
        found = Integer(value)
    else:
        return value
    found.origin = expression
    return found


def _binary(function: Callable[[Any, Any], Any], swapped: bool) -> Callable[[Any, Any], Any]:
    def compute(self: Any, other: Any) -> Any:
        if not isinstance(other, (int, float)):
            return NotImplemented
        pair = (other, self) if swapped else (self, other)
        return _following(function(*map(_plain, pair)), (function, *map(_operand, pair)))

    return compute


def _unary(function: Callable[..., Any]) -> Callable[..., Any]:
    def compute(self: Any, *more: Any) -> Any:
        return _following(function(_plain(self), *more), (function, self.origin, *more))

    return compute


def _format(self: Any, form: str) -> str:
    return marked(self, format(_plain(self), form), form)


def _text(self: Any) -> str:
    return marked(self, str(_plain(self)), str)


_OPERATIONS = {
    name: one
    for function in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
    for name, one in (
        (f"__{function}__", _binary(getattr(operator, function), False)),
        (f"__r{function}__", _binary(getattr(operator, function), True)),
    )
}
_OPERATIONS |= {f"__{one.__name__}__": _unary(one) for one in (abs, round, operator.neg)}
_OPERATIONS |= {"__format__": _format, "__str__": _text}

Float: Any = type("Float", (float,), dict(_OPERATIONS))
Integer: Any = type("Integer", (int,), dict(_OPERATIONS))


def marked(value: Any, text: str, form: str | Callable[[Any], str]) -> str:
    """A text that was made of a number, between its marks."""
    if not any(map(str.isdigit, text)):
        return text
    # Equal texts of one number are equal, since they may name columns.
    at = _formats.setdefault((value.origin, form), len(_formats))
    return f"{chr(_FIRST + at)}{text}{_END}"


def _leaf(value: Any, name: str) -> Any:
    if type(value) in (float, int):
        _leaves.append(name)
        return _following(value, ("leaf", len(_leaves) - 1))
    if isinstance(value, float) and not isinstance(value, Float):  # of NumPy
        return _leaf(float(value), name)
    if type(value) in (tuple, list) and len(value) <= _MOST_ITEMS:
        found = [_leaf(one, name) for one in value]
        return value if all(map(operator.is_, found, value)) else type(value)(found)
    if type(value) is dict and len(value) <= _MOST_ITEMS:
        return {key: _leaf(one, name) for key, one in value.items()}
    return value


_lists: dict[int, Sequence[Any]] = {}


def _number_of(items: Any) -> Any:
    """In place of `numbers.number_of`: the number of items of a list is one of the document's."""
    if isinstance(items, int):
        return items
    _lists[id(items)] = items  # kept, so that no other list has its number
    return _following(len(items), ("items", id(items)))


_forms: dict[tuple[int, ...], Callable[[Any], Any]] = {}


def _transparent(function: Callable[..., Any]) -> Callable[..., Any]:
    """In place of a function of one value: its result remembers the value."""

    def compute(value: Any, *more: Any) -> Any:
        if not isinstance(value, (Float, Integer)):
            return function(value, *more)
        found = function(_plain(value), *more)
        key = (id(function), *map(id, more))
        _kept.append(more)  # so that no other object has its identity
        form = _forms.setdefault(key, lambda plain: function(plain, *more))
        return _following(found, (form, value.origin))

    return compute


_kept: list[Any] = []


@functools.cache
def _result_types(modules: int) -> list[type]:
    """Classes of results in the modules that are loaded, of which there are this many."""
    return [*_classes_of_results()]


def _classes_of_results() -> Iterator[type]:
    for name, module in [*sys.modules.items()]:
        if name.startswith(_RESULTS) and name not in _NO_RESULTS:
            for one in vars(module).values():
                if isinstance(one, type) and one.__module__ == name:
                    if one.__name__ in _MEASURED:
                        continue
                    yield from [one] if dataclasses.is_dataclass(one) else []


@contextlib.contextmanager
def tracked() -> Iterator[None]:
    """Numbers in the fields of results that are made meanwhile remember where they come from."""
    _formats.clear()

    def watched(cls: type) -> Callable[..., None]:
        usual, names = cls.__init__, [field.name for field in dataclasses.fields(cls)]

        def init(self: Any, *arguments: Any, **named: Any) -> None:
            usual(self, *arguments, **named)
            for name in names:
                value = getattr(self, name)
                found = _leaf(value, f"{cls.__name__}.{name}")
                if found is not value:
                    object.__setattr__(self, name, found)

        return init

    csv_cell = tables.csv_cell
    replaced = {
        numbers.item_count: _number_of,
        estimate.from_test_scale: _transparent(estimate.from_test_scale),
    }

    def cell(value: Any) -> str:
        if isinstance(value, (Float, Integer)):
            return marked(value, csv_cell(_plain(value)), csv_cell)
        return csv_cell(value)

    with pytest.MonkeyPatch.context() as patch:
        for cls in set(_result_types(len(sys.modules))):
            patch.setattr(cls, "__init__", watched(cls))
        patch.setattr(tables, "csv_cell", cell)
        for name, module in [*sys.modules.items()]:
            for function, other in replaced.items() if name.startswith("cnnbench.") else ():
                if vars(module).get(function.__name__) is function:
                    patch.setattr(module, function.__name__, other)
        yield


class _List(list[Any]):
    """A list of a document, and the list that it was made of."""

    source: Sequence[Any]


def encoded(document: codec.Document) -> dict[str, Any]:
    """A document as JSON values, with numbers that remember where they come from."""
    encode = codec.encode

    def kept(value: Any) -> Any:
        if isinstance(value, (Float, Integer)):
            return value
        found = encode(value)
        if isinstance(found, list):
            found = _List(found)
            found.source = value
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "encode", kept)
        return document.to_dict()


@dataclass(frozen=True)
class Number:
    """A number in a text: where it stands, what it was computed from, and how it was written."""

    start: int
    end: int
    expression: Expression
    form: str | Callable[[Any], str]


@dataclass(frozen=True)
class Page:
    """An output without marks, and the numbers in it."""

    name: str
    text: str
    numbers: tuple[Number, ...]

    @classmethod
    def of(cls, name: str, text: str) -> Page:
        """The page of a text with marks."""
        formats = [*_formats]
        found, plain, length = [], [], 0
        begun: list[tuple[int, int]] = []
        for part in _MARK.split(text):
            if part == _END:
                start, at = begun.pop()
                found.append(Number(start, length, *formats[at]))
            elif _MARK.fullmatch(part):
                begun.append((length, ord(part) - _FIRST))
            else:
                plain.append(part)
                length += len(part)
        assert not begun, name
        return cls(name, "".join(plain), tuple(found))


def without_marks(value: Any, made: dict[int, Any] | None = None) -> Any:
    """A result with plain numbers and texts; `made` are copies of its parts, by their identity."""
    made = {} if made is None else made
    if isinstance(value, str):
        return _MARK.sub("", value)
    if isinstance(value, (Float, Integer)):
        return _plain(value)
    if isinstance(value, (Enum, type)):
        return value
    if type(value).__module__.startswith((*_RESULTS, "cnnbench.campaigns.bisect")):
        if id(value) not in made:
            made[id(value)] = plain = copy.copy(value)
            for name in vars(value) if hasattr(value, "__dict__") else type(value).__slots__:
                object.__setattr__(plain, name, without_marks(getattr(value, name), made))
        return made[id(value)]
    if type(value) in (tuple, list):
        return type(value)(without_marks(one, made) for one in value)
    if type(value) is dict:
        return {key: without_marks(one, made) for key, one in value.items()}
    return value


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Paths and values of all numbers and texts of a document.

    The reason of a judgement without a change is what was observed: a text like any other.
    """
    if isinstance(value, Mapping):
        observed = "base_median" in value and value.get("change") is None
        for key, one in value.items():
            name = f"observed {key}" if observed and key == "reason" else key
            yield from leaves(one, f"{path}.{name}" if path else name)
    elif isinstance(value, (list, tuple)):
        yield f"len({path})", value
        for at, one in enumerate(value):
            yield from leaves(one, f"{path}[{at}]")
    elif value is not None and not isinstance(value, bool):
        yield path, value


class Document:
    """A document: the numbers and texts that outputs may say, by their paths.

    Args:
      tree: the document as JSON values, with marks.
      prose: keys of texts that are sentences: numbers in them are said, as in any output.
      phrases: texts with what texts of the document say that are too short to stand alone.
    """

    def __init__(
        self, tree: Mapping[str, Any], prose: Sequence[str], phrases: Iterable[str] = ()
    ) -> None:
        self.values: dict[str, Any] = {}
        self.paths: dict[Expression, list[str]] = {}
        self.texts: list[str] = []
        self.sentences: list[Page] = []
        for path, value in leaves(tree):
            if isinstance(value, list):
                self.values[path] = len(value)
                if isinstance(value, _List):
                    key = ("items", id(value.source))
                    self.paths.setdefault(key, []).append(path)
            elif not isinstance(value, str):
                self.values[path] = _plain(value)
                if isinstance(value, (Float, Integer)):
                    self.paths.setdefault(value.origin, []).append(path)
            elif re.sub(r"\[\d+\]", "", path).rpartition(".")[2] in prose:
                self.sentences.append(Page.of(path, value))
            elif re.search(r"\d", value) and len(value) > _FEW:
                self.texts.append(without_marks(value).rstrip("."))
        self.texts += phrases
        self.said: set[str] = set()

    def with_value(self, path: str, value: Any) -> Document:
        """The document with another value at a path."""
        other = copy.copy(self)
        other.values = {**self.values, path: value}
        return other

    def spans_of_texts(self, text: str) -> Iterator[tuple[int, int]]:
        """Where a text says texts of the document: whole numbers, which may overlap."""
        for words in self.texts:
            at = text.find(words)
            while at >= 0:
                end = at + len(words)
                if not (text[at - 1 : at].isdigit() or text[end : end + 1].isdigit()):
                    yield at, end
                at = text.find(words, at + 1)

    def paths_of(self, expression: Any) -> list[str] | None:
        """Paths of the one value that a number was computed from; None without, or of several.

        The sum of a column of a list, and the difference of two, count as one value.
        """
        if not _is_expression(expression):
            return []
        if expression in self.paths:
            return self.paths[expression]
        if expression[0] in _SOURCES:
            return None
        found = [self.paths_of(one) for one in expression[1:]]
        if None in found:
            return None
        several = {tuple(one) for one in found if one}
        if len(several) < 2:
            return [*several.pop()] if several else []
        columns = {path.rpartition("[")[0] for paths in several for path in paths}
        is_sum = expression[0] in (operator.add, operator.sub) and len(columns) == 1
        return sorted(itertools.chain(*several)) if is_sum and columns != {""} else None

    def value_of(self, expression: Any, path: str) -> Any:
        """What an expression is for the value at a path."""
        if not _is_expression(expression):
            return expression
        paths = self.paths.get(expression, ())
        if paths:  # of a sum, each item has its own
            return self.values[path if path in paths else paths[0]]
        return expression[0](*(self.value_of(one, path) for one in expression[1:]))

    def fault_of(self, number: Number, text: str) -> str:
        """Why a text of a number is wrong, "" if it is right."""
        paths = self.paths_of(number.expression)
        if not paths:
            return f"not in the document: {_shown(number.expression)}"
        self.said.update(paths)
        for path in paths:
            value = self.value_of(number.expression, path)
            wanted = number.form(value) if callable(number.form) else format(value, number.form)
            if text != wanted:
                return f"{path} is {wanted}"
        return ""


_FEW = 2
"""Shorter texts, such as the value 8 of a fact, would cover what they have not to do with."""

_DIGITS = re.compile(r"\d+(?:[.,]\d+)*")


def faults(page: Page, document: Document, known: re.Pattern[str]) -> list[str]:
    """The numbers of a page that do not follow from the document, with what is around them.

    Args:
      known: what is no result: words with digits that may stand anywhere.
    """
    text, found = page.text, []
    covered: list[tuple[int, int]] = []
    for one in page.numbers:
        covered.append((one.start, one.end))
        if fault := document.fault_of(one, text[one.start : one.end]):
            found.append(_around(text, one.start, one.end, fault))
    rest = _blanked(text, covered)
    if _DIGITS.search(rest):
        covered += document.spans_of_texts(text)
        covered += [at.span() for at in known.finditer(text)]
        rest = _blanked(text, covered)
    return found + [_around(text, *one.span(), "of no value") for one in _DIGITS.finditer(rest)]


def _blanked(text: str, spans: Iterable[tuple[int, int]]) -> str:
    letters = list(text)
    for start, end in spans:
        letters[start:end] = "~" * (end - start)
    return "".join(letters)


def _around(text: str, start: int, end: int, fault: str) -> str:
    before = text[max(0, start - 60) : start].replace("\n", "/")
    return f"{before}[{text[start:end]}]{text[end : end + 40]!r}: {fault}"


class _Texts(HTMLParser):
    """The texts of a page, and what it says on hover and to screen readers."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._hidden = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden = tag in ("style", "script")
        self.found += [text or "" for name, text in attrs if name in ("title", "aria-label")]

    def handle_data(self, data: str) -> None:
        self.found += [] if self._hidden else [data]


def page_text(page: str) -> str:
    """What a page says, a line for each of its texts."""
    texts = _Texts()
    texts.feed(page)
    return "\n".join(filter(None, map(str.strip, texts.found)))


_SCALES = ("x", "y", "style", "mark", "sizes", "ticks", "low", "high", "box", "spans", "points")
"""Fields of charts that are no results, or are drawn and not said."""


def chart_text(chart: Any, *_: Any) -> str:
    """In place of a drawing: the values and texts of a chart, in HTML."""
    return "".join(f"<p>{html.escape(one)}</p>" for one in _drawn(chart))


def _drawn(value: Any) -> Iterator[str]:
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            if field.name not in _SCALES:
                yield from _drawn(getattr(value, field.name))
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _drawn(one)
    elif isinstance(value, (Float, Integer)):
        yield marked(value, repr(_plain(value)), repr)
    elif isinstance(value, str):
        yield value
    elif isinstance(value, float) and value:
        yield repr(value)
