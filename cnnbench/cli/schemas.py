"""JSON Schemas (draft 2020-12) of all documents that cnnbench writes, from their dataclasses.

An object has no other keys than its class, unless that has `more_keys`; mappings, such as the facts
of an environment, are open. Conditions beyond types, such as "as many losses as steps", are checked
only by reading. ``python -m cnnbench.cli.schemas docs/schemas`` writes them.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from cnnbench.campaigns.processes.results_dir import JournalEvent
from cnnbench.cli.commands.env import EnvDocument
from cnnbench.cli.commands.models import ModelsDocument
from cnnbench.judge.compare import Comparison
from cnnbench.judge.history.formats import HistoryDocument
from cnnbench.lab.predict.predict import PredictionDocument
from cnnbench.records.all_reduce import AllReduceRecord
from cnnbench.records.campaigns import StrategiesDocument, TuneDocument
from cnnbench.records.codec import IMPLIED_KIND, NOT_FINITE, Document, Json, Key, keys_of
from cnnbench.records.metric import SUMMARY, Summary, load_metrics
from cnnbench.records.profiles import Explanation, Roofline, StepProfile
from cnnbench.records.run import RunRecord
from cnnbench.testing import BaselineDocument

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
    properties: dict[str, Json] = {}
    required: list[Json] = []
    if issubclass(cls, Document):
        properties["schema"] = {"const": cls.schema}
        properties["kind"] = {"const": cls.kind}
        required += ["schema"] if cls.kind == IMPLIED_KIND else ["schema", "kind"]
    for key in keys_of(cls):
        form = _form(key.rules.get("type") or _annotation(key), definitions, key.rules)
        about = _descriptions(key.owner)
        text = about.get(key.attribute, about.get(key.name))
        if text is None and key.getter is not None:
            text = _summary(key.getter)
        properties[key.name] = {"description": text, **form} if text else form
        if not key.rules.get("optional"):
            required.append(key.name)
    return {
        "description": _summary(cls),
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": bool(getattr(cls, "more_keys", False)),
    }


def _annotation(key: Key) -> Any:
    if key.getter is None:
        return typing.get_type_hints(key.owner)[key.attribute]
    return typing.get_type_hints(key.getter)["return"]


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
    if hint is Summary:
        definitions["number"] = _NUMBER
        definitions[hint.__name__] = _metrics()
        return {"$ref": f"#/$defs/{hint.__name__}"}
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        name = _NAMES.get(hint.__name__, hint.__name__)
        if name not in definitions:
            definitions[name] = {}  # reserves its place, in case it contains itself
            definitions[name] = _object(hint, definitions)
        return {"$ref": f"#/$defs/{name}"}
    raise TypeError(f"{hint!r} has no JSON Schema")


def _metrics() -> dict[str, Json]:
    """The schema of a summary; plug-ins may add metrics."""
    load_metrics()
    value: dict[str, Json] = {"anyOf": [{"$ref": "#/$defs/number"}, {"type": "null"}]}
    text: dict[str, Json] = {"anyOf": [{"type": "string"}, {"type": "null"}]}
    return {
        "description": _summary(Summary),
        "type": "object",
        "properties": {
            key: {"description": metric.about, **(value if metric.unit else text)}
            for key, metric in SUMMARY.items()
        },
        "required": [key for key, metric in SUMMARY.items() if metric.always],
        "additionalProperties": value,
    }


_NAMES = {
    "ComparedConfiguration": "EntryDocument",
    "LevelChange": "StepDocument",
    "MetricResult": "ResultDocument",
    "Outlier": "OutlierDocument",
    "Policy": "PolicyDocument",
    "SeriesPoint": "PointDocument",
    "SharedStep": "SharedStepDocument",
    "Trend": "SeriesDocument",
}
"""Names of definitions that are not those of their classes; names of schemas do not change."""


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


DOCUMENTS: Mapping[str, tuple[type[Any], str]] = {
    "run": (RunRecord, "cnnbench run --result_json=FILE"),
    "allreduce": (AllReduceRecord, "cnnbench allreduce --result_json=FILE"),
    "allreduce_prediction": (
        PredictionDocument,
        "cnnbench allreduce --predict --result_json=FILE",
    ),
    "comparison": (Comparison, "cnnbench compare --format=json, cnnbench ab --format=json"),
    "step_profile": (StepProfile, "cnnbench run --profile_json=FILE"),
    "explanation": (Explanation, "cnnbench explain --format=json, cnnbench ab --format=json"),
    "history": (HistoryDocument, "cnnbench history --format=json"),
    "strategies": (StrategiesDocument, "cnnbench strategies --format=json"),
    "tune": (TuneDocument, "cnnbench tune --format=json"),
    "roofline": (Roofline, "cnnbench roofline MODEL --json=FILE"),
    "models": (ModelsDocument, "cnnbench models --format=json"),
    "env": (EnvDocument, "cnnbench env --json"),
    "baseline": (BaselineDocument, "pytest --cnnbench-update"),
    "journal": (
        JournalEvent,
        "a line of journal.jsonl of cnnbench ab and tune, of sweep.jsonl of sweep",
    ),
}
"""The class of each document and what writes it, by the name of its schema."""


def schemas() -> dict[str, str]:
    """The files of all schemas, by name."""
    return {
        f"{name}.schema.json": json.dumps(schema_of(cls, title), indent=1) + "\n"
        for name, (cls, title) in DOCUMENTS.items()
    }


if __name__ == "__main__":
    for name, text in schemas().items():
        (Path(sys.argv[1]) / name).write_text(text, encoding="utf-8")
