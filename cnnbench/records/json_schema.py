"""JSON Schemas (draft 2020-12) of the dataclasses that `cnnbench.records.codec` writes.

Types, keys, optional keys and descriptions all come from the dataclasses. An object has no other
keys than its class, unless that has `more_keys`; mappings, such as the facts of an environment, are
open. Conditions beyond types, such as "as many losses as steps", are checked only by reading.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from cnnbench.records.codec import IMPLIED_KIND, NOT_FINITE, Document, Json, computed_of, json_key

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_SCALARS: dict[Any, dict[str, Json]] = {
    Any: {},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    types.NoneType: {"type": "null"},
}
_NUMBER: dict[str, Json] = {
    "description": "A double; JSON has no NaN and no infinities, hence the words.",
    "anyOf": [{"type": "number"}, {"enum": list(NOT_FINITE)}],
}
_ENTRY = re.compile(r"  (\w[\w, ]*): (.*)")


def schema_of(cls: type[Any], title: str) -> dict[str, Json]:
    """The schema of the document that `encode` makes of a dataclass."""
    definitions: dict[str, Json] = {}
    body = _object(cls, definitions)
    shared: dict[str, Json] = {"$defs": definitions} if definitions else {}
    return {"$schema": DIALECT, "title": title, **body, **shared}


def _object(cls: Any, definitions: dict[str, Json]) -> dict[str, Json]:
    """The schema of a dataclass; adds those of the dataclasses in it to the definitions."""
    hints = typing.get_type_hints(cls)
    about = _descriptions(cls)
    properties: dict[str, Json] = {}
    required: list[Json] = []
    if issubclass(cls, Document):
        properties["schema"] = {"const": cls.schema}
        properties["kind"] = {"const": cls.kind}
        required += ["schema"] if cls.kind == IMPLIED_KIND else ["schema", "kind"]
    for field in dataclasses.fields(cls):
        key = json_key(field)
        form = _form(hints[field.name], definitions, field.metadata)
        text = about.get(field.name)
        properties[key] = {"description": text, **form} if text else form
        if not field.metadata.get("optional"):
            required.append(key)
    for key, getter in computed_of(cls).items():
        form = _form(typing.get_type_hints(getter)["return"], definitions)
        properties[key] = {"description": _summary(getter), **form}
        required.append(key)
    return {
        "description": _summary(cls),
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": bool(getattr(cls, "more_keys", False)),
    }


def _form(
    hint: Any, definitions: dict[str, Json], metadata: Mapping[str, Any] | None = None
) -> dict[str, Json]:
    """The schema of a type that `encode` can write.

    Keys of a field's metadata: "choices" and "format" of its texts; "form", the dataclass that a
    mapping is written from.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [_form(one, definitions, metadata) for one in arguments]}
    if hint is str and metadata and "choices" in metadata:
        return {"enum": list(metadata["choices"])}
    if hint is str and metadata and "format" in metadata:
        return {"type": "string", "format": metadata["format"]}
    if hint in _SCALARS:
        return dict(_SCALARS[hint])
    if hint is float:
        definitions["number"] = _NUMBER
        return {"$ref": "#/$defs/number"}
    if origin in (tuple, list, Sequence):
        return {"type": "array", "items": _form(arguments[0], definitions)}
    if origin in (dict, Mapping) and metadata and "form" in metadata:
        return _form(metadata["form"], definitions)
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": _form(arguments[1], definitions) or True}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"enum": [one.value for one in hint]}
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        name = hint.__name__
        if name not in definitions:
            definitions[name] = {}  # its place, should it contain itself
            definitions[name] = _object(hint, definitions)
        return {"$ref": f"#/$defs/{name}"}
    raise TypeError(f"{hint!r} has no JSON Schema")


def _summary(cls: Any) -> str:
    return _json_words(" ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split()))


def _descriptions(cls: Any) -> dict[str, str]:
    """Descriptions of attributes from the docstrings of a dataclass and its bases, by name."""
    found: dict[str, str] = {}
    for one in reversed(cls.__mro__):
        lines = inspect.cleandoc(one.__doc__ or "").partition("Attributes:\n")[2].splitlines()
        names: Sequence[str] = ()
        for line in lines:
            if entry := _ENTRY.fullmatch(line):
                names = entry[1].split(", ")
                found |= dict.fromkeys(names, entry[2])
            elif line.startswith("    "):
                found |= {name: f"{found[name]} {line.strip()}" for name in names}
            elif line:
                break
    return {name: _json_words(text) for name, text in found.items()}


def _json_words(text: str) -> str:
    return re.sub(r"\bNone\b", "null", text)
