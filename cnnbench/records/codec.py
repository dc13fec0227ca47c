"""JSON documents: their conversion from and to dataclasses, the registry of their classes, and the
range of times, sizes and rates in them.

The JSON Schemas in docs/schemas/ follow from the registered classes.

The name of a field is its JSON key (without a trailing underscore, which is needed for Python
keywords), and the annotation of the field is its type. A class that also writes values that are
computed lists its keys in `json_keys`. Floats that are not finite are written as
the strings ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``; the dataclass checks whether a field may
contain one. Integers of fields have at most 64 bits and those within mappings must fit into
doubles, so that arithmetic on values that were read cannot fail.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import sys
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timezone
from enum import Enum
from numbers import Integral, Real
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

from cnnbench.base.escapes import dump_json
from cnnbench.base.files import parse_json
from cnnbench.base.text import shortened

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


# Conversion of frozen dataclasses to JSON documents, and of JSON documents to dataclasses.

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

T = TypeVar("T")
C = TypeVar("C", bound="type[Any]")
D = TypeVar("D", bound="Document")

# Kind of a document without the key `kind`, which the first versions did not write: a run record.
IMPLIED_KIND = "run"

# Metadata of dataclass fields. OPTIONAL: a document may lack the key. ABSENT: the key is not
# written if the value is None. NOT_EMPTY: the key is not written if the value is None, false, 0 or
# empty. HIDDEN: the key is neither written nor read.
OPTIONAL: Mapping[str, bool] = {"optional": True}
ABSENT: Mapping[str, bool] = {**OPTIONAL, "absent": True}
NOT_EMPTY: Mapping[str, bool] = {**OPTIONAL, "not_empty": True}
HIDDEN: Mapping[str, bool] = {**OPTIONAL, "hidden": True}

# TIME is the metadata of a field that contains an ISO 8601 time.
TIME: Mapping[str, str] = {"format": "date-time"}

NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_BITS = 64
_NAMES = {
    str: "a string",
    int: f"an integer of {_BITS} bits",
    float: "a number",
    bool: "true or false",
}


class Key(typing.NamedTuple):
    """A key of a JSON document whose value is computed, or is the value of a field with another
    name.

    Attributes:
      name: name of the key.
      path: attributes from the object to the value, such as "metric.unit"; "" for the attribute
        `name`. If an attribute before the last one is None, the value is None.
      rules: as the metadata of a field, such as `ABSENT`; None for those of the field.
    """

    name: str
    path: str = ""
    rules: Mapping[str, Any] | None = None


JsonKeys: TypeAlias = tuple[Key | str | types.EllipsisType, ...]
"""The class variable `json_keys` of a dataclass: its keys in the order of the document.

A text names a field, or a property, which is computed whenever the document is written. ``...``
stands for all fields that no other item names, except `HIDDEN` ones. Classes without `json_keys`
write these fields.
"""


class DocumentKey(typing.NamedTuple):
    """A key of the JSON documents that `encode` creates from a dataclass: as `Key`, with a function
    that returns the value.
    """

    name: str
    path: str
    rules: Mapping[str, Any]
    get: Callable[[Any], Any]


@functools.cache
def document_keys(cls: Any) -> tuple[DocumentKey, ...]:
    """Returns the keys of the JSON documents of a dataclass, in order; see `JsonKeys`."""
    declared = {field.name: field for field in fields(cls)}
    listed: JsonKeys = getattr(cls, "json_keys", (...,))
    items: list[Key | types.EllipsisType] = [
        Key(item) if isinstance(item, str) else item for item in listed
    ]
    named = {item.path or item.name for item in items if isinstance(item, Key)}
    keys: list[DocumentKey] = []
    for item in items:
        if not isinstance(item, Key):
            others = [field for name, field in declared.items() if name not in named]
            written = [field for field in others if "hidden" not in field.metadata]
            keys += [_document_key(json_key(one), one.name, one.metadata) for one in written]
            continue
        path = item.path or item.name
        rules: Mapping[str, Any] = declared[path].metadata if path in declared else {}
        keys.append(_document_key(item.name, path, rules if item.rules is None else item.rules))
    return tuple(keys)


def _document_key(name: str, path: str, rules: Mapping[str, Any]) -> DocumentKey:
    names = path.split(".")

    def value_at_path(value: Any) -> Any:
        for attribute in names:
            if value is None:
                return None
            value = getattr(value, attribute)
        return value

    get = value_at_path if len(names) > 1 else attrgetter(path)
    return DocumentKey(name, path, rules, get)


def keys_within(attribute: str, cls: Any) -> tuple[Key, ...]:
    """Keys of `cls`, for `json_keys` of a class that writes them in place of its attribute."""
    return tuple(Key(key.name, f"{attribute}.{key.path}", key.rules) for key in document_keys(cls))


def choice_metadata(choices: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Returns the metadata of a dataclass field that contains one of the given texts. The dataclass
    itself must check the value.
    """
    return {"choices": tuple(choices)}


def encode(value: object) -> Json:
    """Converts a dataclass, mapping, sequence, enum member, or scalar of Python or NumPy to a JSON
    value.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    # `isinstance` is slow for abstract classes such as numbers.Integral, so `int` and `float` are
    # tried first.
    if isinstance(value, (int, Integral)):
        return int(value)
    if isinstance(value, (float, Real)):
        number = float(value)
        return number if math.isfinite(number) else json.dumps(number)
    if isinstance(value, Document):
        return value.to_dict()
    if isinstance(value, Enum):
        return encode(value.value)
    if dataclasses.is_dataclass(value):
        return _encoded_fields(value)
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [encode(item) for item in value]
    raise ValueError(f"{value!r} of type {type(value).__name__} has no JSON form")


def _encoded_fields(value: Any) -> dict[str, Json]:
    """Returns the keys and JSON values of a dataclass instance. Leaves out keys that the metadata
    of a field excludes (for example, if the value is None).
    """
    encoded = {}
    for key in document_keys(value.__class__):
        item = key.get(value)
        if not (item is None and key.rules.get("absent")) and (
            item or not key.rules.get("not_empty")
        ):
            encoded[key.name] = encode(item)
    return encoded


def decode(cls: type[T], data: object, path: str = "") -> T:
    """Creates the dataclass `cls` from a JSON value that `encode` returned. Ignores unknown keys.

    ValueError names the missing key, or the key with a value of the wrong type.
    """
    if not isinstance(data, dict):
        raise ValueError(f"{path or 'record'}: expected an object, got {shortened(repr(data), 60)}")
    values = {}
    for name, key, read, optional in _field_readers(typing.cast("Any", cls)):
        where = f"{path}.{key}" if path else key
        if key in data:
            values[name] = read(data[key], where)
        elif not optional:
            raise ValueError(f"{where}: missing")
    return cls(**values)


def json_text(document: Mapping[str, Json], item_lines: Collection[str] = ()) -> str:
    """Converts a document to strictly valid JSON text, with one line for each top-level key and for
    each item of the lists in `item_lines`.
    """
    lines = []
    for key, value in document.items():
        if key in item_lines and isinstance(value, list) and value:
            items = ",\n  ".join(dump_json(item) for item in value)
            text = f"[\n  {items}\n]"
        else:
            text = dump_json(value)
        lines.append(f"{dump_json(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


class Document:
    """Base class of the dataclasses that are written as JSON documents with a schema number, a
    kind, fields and computed values.

    A document without `kind` is a run record. Lists in `item_lines` are written with a line for
    each item, and an `indented` document with a line for each value.
    """

    __slots__ = ()

    kind: ClassVar[str]
    schema: ClassVar[int]
    item_lines: ClassVar[tuple[str, ...]] = ()
    indented: ClassVar[bool] = False

    def to_dict(self) -> dict[str, Json]:
        """Returns the JSON document as a dict."""
        kind: dict[str, Json] = {} if self.kind == IMPLIED_KIND else {"kind": self.kind}
        return {"schema": self.schema, **kind, **_encoded_fields(self)}

    def to_json(self) -> str:
        """Returns the document as JSON text, formatted as in `json_text`."""
        if self.indented:
            return dump_json(self.to_dict(), indent=1) + "\n"
        return json_text(self.to_dict(), self.item_lines)

    @classmethod
    def from_json(cls: type[D], text: str | bytes) -> D:
        """Creates the record from a JSON text. ValueError as in `from_dict`."""
        return cls.from_dict(parse_json(text))

    @classmethod
    def from_dict(cls: type[D], data: object) -> D:
        """Creates the record from a document that `to_dict` returned.

        ValueError, with the key, for another kind or schema, or an invalid or missing value.
        """
        if not isinstance(data, dict):
            raise ValueError(f"record: expected an object, got {type(data).__name__}")
        if "schema" not in data:
            raise ValueError("schema: missing; this is not a cnnbench record")
        kind, schema = data.get("kind", IMPLIED_KIND), data["schema"]
        if kind != cls.kind:
            raise ValueError(f"kind: {str(kind)[:40]!r} is not {cls.kind!r}")
        if isinstance(schema, bool) or schema != cls.schema:
            raise ValueError(
                f"schema: this version of cnnbench reads schema {cls.schema}, not {schema!r}"
            )
        return decode(cls, data)


def parse_start_time(started_at: str) -> datetime:
    """Parses the start time of a record (ISO 8601 with UTC offset) and converts it to UTC.
    ValueError if the time is malformed.
    """
    try:
        # In Python 3.10, `fromisoformat` does not accept the suffix Z.
        start = datetime.fromisoformat(started_at.replace("Z", "+00:00"))
    except ValueError:
        raise ValueError(f"started_at: {started_at!r} is not an ISO 8601 time") from None
    if start.tzinfo is None:
        raise ValueError(f"started_at: {started_at!r} lacks its offset from UTC")
    try:
        return start.astimezone(timezone.utc)
    except OverflowError:
        raise ValueError(
            f"started_at: {started_at!r} is outside the years 1 to 9999 of UTC"
        ) from None


def json_key(field: dataclasses.Field[Any]) -> str:
    """Returns the JSON key of a dataclass field."""
    return field.name.rstrip("_")


@functools.cache
def _field_readers(cls: Any) -> tuple[tuple[str, str, _Reader, bool], ...]:
    """Returns, for each field of a dataclass, its name, its JSON key, the function that reads its
    JSON value, and whether the key is optional.
    """
    hints = typing.get_type_hints(cls)
    return tuple(
        (
            field.name,
            json_key(field),
            _value_reader(hints[field.name]),
            bool(field.metadata.get("optional")),
        )
        for field in dataclasses.fields(cls)
        if field.init and "hidden" not in field.metadata
    )


_Reader: TypeAlias = "Callable[[Any, str], Any]"
"""Function that converts a JSON value. Its arguments are the value and the path of the value in the
document, such as "batch.global", for error messages.
"""


@functools.cache
def _value_reader(hint: Any) -> _Reader:
    """Returns the function that converts JSON values to a type. The result is cached, because
    records contain hundreds of values.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        (inner,) = (
            _value_reader(argument) for argument in arguments if argument is not types.NoneType
        )
        return lambda data, path: None if data is None else inner(data, path)
    if isinstance(hint, type) and issubclass(hint, Document):
        return lambda data, path: hint.from_dict(data)
    if dataclasses.is_dataclass(hint):
        return functools.partial(decode, typing.cast("type[Any]", hint))
    if origin is tuple:
        return functools.partial(_read_items, arguments[0], _value_reader(arguments[0]))
    if origin is Mapping:
        return functools.partial(_read_mapping, arguments[1] is int)
    return functools.partial(_read_scalar, hint)


def _read_items(hint: Any, read: _Reader, data: object, path: str) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise ValueError(f"{path}: expected a list, got {shortened(repr(data), 60)}")
    if hint is float and set(map(type, data)) <= {float}:
        # Records may contain thousands of step times, so a list of floats is converted at once.
        return tuple(data)
    return tuple(read(item, f"{path}[{i}]") for i, item in enumerate(data))


def _read_mapping(values_are_counts: bool, data: object, path: str) -> Mapping[str, Any]:
    if not isinstance(data, dict):
        raise ValueError(f"{path}: expected an object, got {shortened(repr(data), 60)}")
    for key, value in data.items():
        if values_are_counts and _read_scalar(int, value, f"{path}.{key}") < 0:
            raise ValueError(f"{path}.{key}: {value} is negative")
        if type(value) in _NESTING and not _fits_floats(value):
            raise ValueError(
                f"{path}.{key}: {shortened(repr(value), 60)} contains a number that is too large "
                "for a double"
            )
    return data


_NESTING = (int, dict, list)
"""Types of JSON values that may be or contain an integer that is too large for a double."""


def _read_scalar(hint: type, data: object, path: str) -> Any:
    if hint is float:
        if type(data) is float:
            return data
        if isinstance(data, str) and data in NOT_FINITE:
            return NOT_FINITE[data]
        # In Python, bool is a subclass of int. In JSON, true and false are not numbers, so they are
        # refused.
        if isinstance(data, (int, float)) and not isinstance(data, bool):
            # If an integer is too large for a double, float() raises OverflowError.
            with contextlib.suppress(OverflowError):
                return float(data)
    elif hint is int:
        if type(data) is int and data.bit_length() <= _BITS:
            return data
    elif isinstance(data, hint):
        return data
    raise ValueError(f"{path}: expected {_NAMES[hint]}, got {shortened(repr(data), 60)}")


def _fits_floats(data: object) -> bool:
    if type(data) is int:
        return data.bit_length() < sys.float_info.max_exp
    if isinstance(data, dict):
        return all(map(_fits_floats, data.values()))
    return not isinstance(data, list) or all(map(_fits_floats, data))


def dataclass_from_sources(cls: type[T], *sources: object, **own: Any) -> T:
    """Creates a dataclass whose fields are taken from `own` or, if a field is missing there, from
    the first source that has an attribute with the name of the field.
    """
    names = (field.name for field in dataclasses.fields(typing.cast("Any", cls)))
    for name in (name for name in names if name not in own):
        source = next((candidate for candidate in sources if hasattr(candidate, name)), None)
        # A field for which no source has a value keeps its default.
        if source is not None:
            own[name] = getattr(source, name)
    return cls(**own)


# The registry of documents: their classes, and the commands that write them.

DOCUMENTS: dict[str, tuple[type[Any], str]] = {}
"""The class of each document, and the command that writes it, by the name of the schema. A class is
in the table as soon as its module was imported.
"""


def json_document(written_by: str, name: str = "") -> Callable[[C], C]:
    """Decorator that registers a dataclass as a JSON document.

    Args:
      written_by: the command that writes the document; it becomes the title of the schema.
      name: name of the schema. The default is the kind of a `Document`.
    """

    def register(cls: C) -> C:
        DOCUMENTS[name or getattr(cls, "kind", "")] = cls, written_by
        return cls

    return register


# Checks of the range that records accept for times, sizes and rates.

AMOUNTS = (1e-40, 1e40)
"""Smallest and largest accepted time, size or rate. Statistics of values in this range, including
squared ratios of two of them, neither overflow nor underflow."""


def to_floats(section: str, values: Mapping[str, Any]) -> dict[str, float]:
    """Converts numbers by name to floats; JSON contains infinities and NaN as text."""
    try:
        return {name: float(value) for name, value in values.items()}
    except (TypeError, ValueError):
        raise ValueError(f"{section}: {values} are not all numbers") from None


def check_amounts_in_range(section: str, instance: DataclassInstance) -> None:
    """Raises ValueError if a time, size or rate in a section of a record is neither 0 nor in the
    accepted range (1e-40 to 1e40).
    """
    for checked_field in fields(instance):
        value = getattr(instance, checked_field.name)
        if not isinstance(value, (int, float)) or value == 0:
            continue
        if not AMOUNTS[0] <= value <= AMOUNTS[1]:
            check_amount_in_range(f"{section}.{json_key(checked_field)}", value)


def check_amount_in_range(name: str, value: float) -> None:
    """Raises ValueError if a time, size or rate is outside of the accepted range (1e-40 to 1e40).
    The message contains its name in the record.
    """
    if not is_valid_amount(value):
        raise ValueError(f"{name}: {value} is not in the range {AMOUNTS[0]} to {AMOUNTS[1]}")


def is_valid_amount(value: float) -> bool:
    """Whether a time, size or rate is in the range that records accept (1e-40 to 1e40)."""
    return AMOUNTS[0] <= value <= AMOUNTS[1]


def index_of_invalid_amount(values: Sequence[float], allow_zero: bool = False) -> int | None:
    """Returns the index of the first time, size or rate that is outside of the accepted range
    (1e-40 to 1e40); None if all are valid.
    """
    checked = [value for value in values if value] if allow_zero else values
    # NaN is found by the sum of all values: if one is NaN, the sum is NaN, which is not equal to
    # itself.
    if not checked or (
        AMOUNTS[0] <= min(checked) and max(checked) <= AMOUNTS[1] and sum(checked) == sum(checked)
    ):
        return None
    return next(
        i
        for i, value in enumerate(values)
        if (value or not allow_zero) and not is_valid_amount(value)
    )
