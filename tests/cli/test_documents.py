"""The published JSON Schemas are those of the code, and hold for old and new documents.

Documents that a command wrote just now are checked where its tests have them (fixture `holds`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any, ClassVar

import pytest
from jsonschema import Draft202012Validator

from cnnbench.base.document.markdown import replace_marked_table
from cnnbench.cli import documents
from cnnbench.records.codec import ABSENT, Document, JsonKeys, Key, choice_metadata
from cnnbench.variable_mgr.modes import BUILT_IN

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "schemas"
FROZEN = ROOT / "tests" / "frozen"


def test_every_document_is_registered():
    classes, kinds = Document.__subclasses__(), set()
    while classes:
        cls = classes.pop()
        classes += cls.__subclasses__()
        # Decorators and tests may have left other classes of that name behind.
        module = sys.modules.get(cls.__module__)
        if cls.__module__.startswith("cnnbench.") and getattr(module, cls.__name__, None) is cls:
            kinds.add(cls.kind)
    registered = {cls.kind for cls, _ in documents.DOCUMENTS.values() if issubclass(cls, Document)}
    assert kinds == registered, "decorate the class with json_document"


def test_published_files_are_current():
    published = {path.name: path.read_text() for path in FOLDER.glob("*.json")}
    assert published == documents.schema_files(), "python -m cnnbench.cli.documents docs"


# tests/models/test_document.py tests models.md.
@pytest.mark.parametrize("page", sorted(documents.PAGES.keys() - {"models.md"}))
def test_tables_on_pages_are_current(page):
    made = text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    tables = documents.PAGES[page]()
    assert tables
    for name, table in tables.items():
        made = replace_marked_table(made, name, table)
    assert made == text, "run: python -m cnnbench.cli.documents docs"


def test_modes_that_refuse_a_flag_are_named_with_their_reasons():
    runs = {
        mode.name: documents.small_run_flags(mode)
        for mode in BUILT_IN
        if mode.name in ("replicated", "independent", "parameter_server_strategy")
    }
    assert [*runs] == ["replicated", "independent", "parameter_server_strategy"]

    def refusing(flag):
        return documents.refusing_modes(flag, runs)

    assert refusing("--xla_compile=false") == ("none", "")
    modes, reason = refusing("--num_batches=0")
    assert modes == "`replicated`, `independent`, `parameter_server_strategy`"
    assert ";" not in reason  # the same one for each
    assert refusing("--staged_vars")[0] == modes
    assert refusing("--gradient_accumulation_steps=2")[0].startswith("`independent`")


@pytest.mark.parametrize("name", documents.DOCUMENTS)
def test_a_schema_is_one_and_is_documented(name):
    Draft202012Validator.check_schema(json.loads((FOLDER / f"{name}.schema.json").read_text()))
    assert f"(schemas/{name}.schema.json)" in (ROOT / "docs" / "integrations.md").read_text()


def test_records_of_earlier_versions_are_valid(holds):
    runs = [*FROZEN.glob("runs/*.json"), *FROZEN.glob("ab/*/*.json"), *FROZEN.glob("sweep/*.json")]
    assert len(runs) == 22
    holds("run", *(json.loads(path.read_bytes()) for path in runs))
    holds("allreduce", json.loads((FROZEN / "allreduce.json").read_bytes()))


@pytest.mark.parametrize(
    ("name", "golden"),
    [
        ("comparison", "judge/report/renderers/golden/comparison.json"),
        ("history", "judge/history/golden/history.json"),
    ],
)
def test_documents_with_every_verdict_and_step_are_valid(holds, name, golden):
    holds(name, json.loads((ROOT / "tests" / golden).read_text()))


@pytest.fixture
def is_valid():
    """is_valid(key=value): whether a record with this value, or without the key if None, is."""
    record = json.loads((FROZEN / "runs" / "lenet-1.json").read_bytes())
    validator = Draft202012Validator(json.loads((FOLDER / "run.schema.json").read_text()))

    def check(**changes):
        lacking = {key for key, value in changes.items() if value is None}
        changed = {**record, **changes}
        return validator.is_valid({key: changed[key] for key in changed.keys() - lacking})

    check.record = record
    return check


def test_an_unknown_key_is_allowed_only_where_facts_are(is_valid):
    record = is_valid.record
    for place in ("config", "environment", "summary"):  # of which plug-ins may have more
        assert is_valid(**{place: {**record[place], "new": 1}})
    for place in ("model", "placement", "batch", "measured", "startup_seconds"):
        assert not is_valid(**{place: {**record[place], "new": 1}})
    assert not is_valid(new=1)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, None) for key in ("schema", "status", "config", "model", "summary")),
        ("schema", 2),
        ("kind", "history"),
        ("status", "fine"),
        ("command", "cnnbench"),
        ("batch", {"per_device": 8}),
        ("batch", {"per_device": 1.5, "global": 8}),
        ("losses", ["nan"]),
        ("ab", {"side": "a"}),
        ("ab", {"side": "c", "seed": 1}),
        ("subject", {"labels": {"a": 1}}),
    ],
)
def test_other_values_are_not_valid(is_valid, key, value):
    assert is_valid()
    assert not is_valid(**{key: value})


@dataclass(frozen=True)
class Part:
    """A part.

    Attributes:
      size: how long it is.
    """

    size: float

    @property
    def text(self) -> str:
        """The size in words, or None."""
        return str(self.size)


@dataclass(frozen=True)
class Whole:
    """A whole.

    Attributes:
      name: what it is called.
    """

    json_keys: ClassVar[JsonKeys] = (
        ...,
        Key("size", "part.size"),
        Key("words", "other.text", ABSENT),
        "half",
    )

    name: str
    part: Part
    other: Part | None = None

    @property
    def half(self) -> int:
        """Half of it.

        More about it.
        """
        return 1


def test_types_and_descriptions_follow_the_path_to_a_value():
    schema = documents.schema_of_dataclass(Whole, "title")
    number, text = {"$ref": "#/$defs/number"}, {"type": "string"}
    assert schema["properties"] == {
        "name": {"description": "what it is called.", **text},
        "part": {"$ref": "#/$defs/Part"},
        "other": {"anyOf": [{"$ref": "#/$defs/Part"}, {"type": "null"}]},
        "size": {"description": "how long it is.", **number},
        "words": {"description": "The size in words, or null.", "anyOf": [text, {"type": "null"}]},
        "half": {"description": "Half of it.", "type": "integer"},
    }
    assert schema["required"] == ["name", "part", "other", "size", "half"]


def test_a_type_that_is_never_written_is_named():
    @dataclass(frozen=True)
    class Wrong:
        value: complex

    with pytest.raises(TypeError, match="complex"):
        documents.schema_of_dataclass(Wrong, "")


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 0


@dataclass(frozen=True)
class Typed:
    """A value of each type."""

    switch: bool
    anything: Any
    numbers: tuple[float, ...]
    names: Sequence[str]
    sizes: Mapping[str, int]
    more: dict[str, Any]
    colour: Colour
    level: Level
    choice: str = field(metadata=choice_metadata(("a", "b")))
    inner: Typed | None = None


def test_types_have_schemas():
    schema = documents.schema_of_dataclass(Typed, "title")
    number = {"$ref": "#/$defs/number"}
    properties = {
        "switch": {"type": "boolean"},
        "anything": {},
        "numbers": {"type": "array", "items": number},
        "names": {"type": "array", "items": {"type": "string"}},
        "sizes": {"type": "object", "additionalProperties": {"type": "integer"}},
        "more": {"type": "object", "additionalProperties": True},
        "colour": {"enum": ["red", "blue"]},
        "level": {"type": "integer"},
        "choice": {"enum": ["a", "b"]},
        "inner": {"anyOf": [{"$ref": "#/$defs/Typed"}, {"type": "null"}]},
    }
    body = {
        **{"description": "A value of each type.", "type": "object", "properties": properties},
        **{"required": [*properties], "additionalProperties": False},
    }
    assert {key: schema[key] for key in body} == body
    assert schema["$defs"].keys() == {"number", "Typed"}
    assert schema["$defs"]["Typed"] == body
    assert (schema["$schema"], schema["title"]) == (documents.DIALECT, "title")
    assert [*schema["$defs"]["number"]["anyOf"]] == [
        {"type": "number"},
        {"enum": ["NaN", "Infinity", "-Infinity"]},
    ]
