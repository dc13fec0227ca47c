"""Generates parts of docs/ from declarations: tables of metrics, models and modes, and schemas.

JSON Schemas (draft 2020-12) follow from the dataclasses of all documents that cnnbench writes. An
object has no other keys than its class, unless that has `more_keys`; mappings, such as the facts of
an environment, are open. Conditions beyond types, such as "as many losses as steps", are checked
only by reading. ``python -m cnnbench.cli.documents docs`` writes the tables and the schemas.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from cnnbench.base import plugins
from cnnbench.base.document.markdown import markdown_table, replace_marked_table
from cnnbench.base.text import compact_number, format_bytes
from cnnbench.cli import commands
from cnnbench.data import dataset_names, find_dataset
from cnnbench.errors import FlagError
from cnnbench.judge.metrics.policy import Policy
from cnnbench.machine.checks import CONDITIONS, WARNINGS
from cnnbench.models.declaration import declare
from cnnbench.models.model import Model
from cnnbench.models.registry import get_model, model_names
from cnnbench.plan import parse_run
from cnnbench.records.codec import (
    DOCUMENTS,
    IMPLIED_KIND,
    NOT_FINITE,
    Document,
    Json,
    document_keys,
)
from cnnbench.records.metric import ALL, RUN, SUMMARY, Metric, Summary
from cnnbench.variable_mgr.modes import BUILT_IN, Mode, Processes

_METRICS = "metric, unit, value, better, smallest relevant change, remarks"
_MODELS = (
    "model, data set, image, batch per device, parameters, moving averages, forward GFLOP, "
    "training GFLOP"
)
_MODES = (
    "mode, copies of each variable, gradients, in several processes, ps tasks, towers in sync, "
    "class in `tf.distribute`"
)
_FLAGS = "flag, modes that refuse it, reason"

_MODEL_PACKAGE = "cnnbench.models."

for _name in plugins.submodule_names(commands):
    import_module(f"{commands.__name__}.{_name}")  # registers the documents that it writes


def _table(titles: str, rows: Iterable[Sequence[str]], numbers_from: int = 99) -> str:
    header = titles.split(", ")
    align = ["---:" if place >= numbers_from else "---" for place in range(len(header))]
    return markdown_table(header, align, [*rows])


def metric_tables() -> dict[str, str]:
    """The tables in docs/metrics.md: the metrics of runs, and the metrics of all-reduces."""
    runs = [_metric_row(metric) for metric in ALL.values() if RUN in metric.kinds]
    reductions = [_metric_row(metric) for metric in ALL.values() if RUN not in metric.kinds]
    return {
        "runs": _table(_METRICS, runs),
        "reductions": _table(_METRICS, reductions),
    }


def _metric_row(metric: Metric) -> tuple[str, ...]:
    judged = {*metric.judged.values()}
    # Such an entry is not a metric, but a text about other metrics.
    if not judged and not metric.followed:
        return f"`{metric.name}`", metric.unit, metric.about, "", "", "in the record only"
    better = "higher" if metric.higher_is_better else "lower"
    key = metric.key
    remarks = [
        "by default" if metric.by_default else "",
        "exit code 1 by default" if metric.gates else "",
        *(f"`--metrics={name}`" for name in judged - {metric.name}),
        "" if judged else "not in `--metrics`",
        "" if metric.followed else "not in `--metric`",
        f"`{key}` in the record" if key not in ("", metric.name) else "",
        "not in the record" if not key else "",
    ]
    remark = ", ".join(filter(None, remarks))
    return f"`{metric.name}`", metric.unit, metric.about, better, _threshold_cell(metric), remark


def _threshold_cell(metric: Metric) -> str:
    if metric.threshold is None:
        return f"`--threshold`, {metric.change_text(Policy.threshold, signed=False)}"
    if metric.threshold == 0:
        return "any change"
    least = f" and {format_bytes(metric.least)}" if metric.least else ""
    return metric.change_text(metric.threshold, signed=False) + least


def model_tables() -> dict[str, str]:
    """The table in docs/models.md: the models of each data set with their FLOPs per image."""
    models = [get_model(name, data) for data in dataset_names() for name in model_names(data)]
    # Leave out models of plug-ins that happen to be loaded.
    own = (model for model in models if type(model).__module__.startswith(_MODEL_PACKAGE))
    return {"models": _table(_MODELS, map(_model_row, own), numbers_from=2)}


def _model_row(model: Model) -> tuple[str, ...]:
    spec = declare(model, find_dataset(model.dataset, None).num_classes)
    return (
        model.name,
        model.dataset,
        str(getattr(model, "image_size", spec.input_shape)),
        str(model.batch_size),
        f"{spec.parameters:,}",
        f"{spec.statistics:,}",
        compact_number(spec.forward_flops_per_image / 1e9),
        compact_number(spec.training_flops_per_image / 1e9),
    )


def mode_tables() -> dict[str, str]:
    """The tables in docs/modes.md: modes of --variable_update, and flags that some modes refuse."""
    runs = {mode.name: small_run_flags(mode) for mode in BUILT_IN}
    taken = _table(_FLAGS, ((f"`{flag}`", *refusing_modes(flag, runs)) for flag in FLAGS_BY_MODE))
    return {"modes": _table(_MODES, map(_mode_row, BUILT_IN)), "flags": taken}


def small_run_flags(mode: Mode) -> list[str]:
    """The flags of a small run that a mode of --variable_update accepts."""
    needs = [f"--{name}={value}" for name, value in mode.needs.items()]
    if mode.processes is Processes.COORDINATOR:
        needs += _JOB.split()
    run = [*_SMALL_RUN, f"--variable_update={mode.name}", *needs]
    parse_run(run, environ={})
    return run


def refusing_modes(flag: str, run_flags_by_mode: Mapping[str, Sequence[str]]) -> tuple[str, str]:
    """The modes that refuse a flag, and the reasons."""
    modes, reasons = [], []
    for mode, run in run_flags_by_mode.items():
        try:
            parse_run([*run, flag], environ={})
        except FlagError as error:
            modes.append(f"`{mode}`")
            reasons.append(error.reason)
    return ", ".join(modes) or "none", "; ".join(dict.fromkeys(reasons))


def _mode_row(mode: Mode) -> tuple[str, ...]:
    return (
        f"`{mode.name}`",
        mode.copies.value,
        mode.reduction.value,
        mode.processes.value,
        "yes" if mode.uses_ps else "no",
        "yes" if mode.in_sync else "no",
        f"`{mode.strategy}`" if mode.strategy else "",
    )


def warning_tables() -> dict[str, str]:
    """The table in docs/conditions.md: warnings of runs that are not checks of the conditions."""
    others = ((f"`{name}`", about) for name, about in WARNINGS.items() if name not in CONDITIONS)
    return {"warnings": _table("name, meaning", others)}


_JOB = (
    "--job_name=controller --controller_host=localhost:1 --worker_hosts=localhost:2 "
    "--ps_hosts=localhost:3"
)

_SMALL_RUN = ("--model=resnet20", "--data_name=cifar10", "--device=cpu", "--num_batches=4")

FLAGS_BY_MODE = (
    "--gradient_accumulation_steps=2",
    "--steps_per_execution=2",
    "--recompute=blocks",
    "--ema_decay=0.9",
    "--augment=randaugment",
    "--mixup_alpha=0.2",
    "--cutmix_alpha=1",
    "--global_batch_size=4",
    "--image_size=48",
    "--num_classes=12",
    "--max_seconds=9",
)
"""Flags for which docs/modes.md lists the modes that refuse them."""


PAGES: Mapping[str, Callable[[], dict[str, str]]] = {
    "metrics.md": metric_tables,
    "models.md": model_tables,
    "modes.md": mode_tables,
    "conditions.md": warning_tables,
}
"""The tables on a page, by the page's file name."""


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
_NONE = re.compile(r"\bNone\b")  # None in a docstring is null in JSON.


def schema_of_dataclass(cls: type[Any], title: str) -> dict[str, Json]:
    """The JSON Schema of the documents that `encode` creates from objects of a dataclass."""
    definitions: dict[str, Json] = {}
    body = _dataclass_schema(cls, definitions)
    shared: dict[str, Json] = {"$defs": definitions} if definitions else {}
    return {"$schema": DIALECT, "title": title, **body, **shared}


def _dataclass_schema(cls: Any, definitions: dict[str, Json]) -> dict[str, Json]:
    """The JSON Schema of a dataclass. Adds schemas of nested dataclasses to `definitions`."""
    properties: dict[str, Json] = {}
    required: list[Json] = []
    if issubclass(cls, Document):
        properties["schema"] = {"const": cls.schema}
        properties["kind"] = {"const": cls.kind}
        required += ["schema"] if cls.kind == IMPLIED_KIND else ["schema", "kind"]
    about = _descriptions(cls)
    for key in document_keys(cls):
        value = _type_at_path(cls, key.path)
        form = _type_schema(value.hint, definitions, key.rules)
        names = (key.path, key.name, key.path.partition(".")[0])
        text = next((about[name] for name in names if name in about), value.description)
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


class _Value(NamedTuple):
    """The type of a value in a document, and its description where it is declared."""

    hint: Any
    description: str


def _type_at_path(cls: Any, path: str) -> _Value:
    """Finds the value to which attributes such as "metric.unit" lead from a dataclass."""
    value, is_optional = _Value(cls, ""), False
    for name in path.split("."):
        owner = value.hint
        if types.NoneType in typing.get_args(owner):
            (owner,) = {*typing.get_args(owner)} - {types.NoneType}
            is_optional = True
        member = inspect.getattr_static(owner, name, None)
        getter = getattr(member, "fget", getattr(member, "func", None))
        if getter is None:
            description = _descriptions(owner).get(name, "")
            hints = typing.get_type_hints(owner, include_extras=True)
            value = _Value(hints[name], description)
        else:
            value = _Value(typing.get_type_hints(getter)["return"], _summary(getter))
    return value._replace(hint=value.hint | None) if is_optional else value


def _type_schema(
    hint: Any, definitions: dict[str, Json], metadata: Mapping[str, Any] | None = None
) -> dict[str, Json]:
    """The JSON Schema of values with the type annotation `hint`, as `encode` writes them.

    `metadata` belongs to a dataclass field: "choices" and "format" of its texts. A mapping
    that is annotated with a dataclass is written from it.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [_type_schema(argument, definitions, metadata) for argument in arguments]}
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
        return {"type": "array", "items": _type_schema(arguments[0], definitions)}
    if origin is typing.Annotated:
        return _type_schema(arguments[1], definitions)
    if origin in (dict, Mapping):
        return {
            "type": "object",
            "additionalProperties": _type_schema(arguments[1], definitions) or True,
        }
    if isinstance(hint, type) and issubclass(hint, Enum):
        is_number = issubclass(hint, int)
        return {"type": "integer"} if is_number else {"enum": [one.value for one in hint]}
    if hint is Summary:
        definitions["number"] = _NUMBER
        definitions[hint.__name__] = _metrics_schema()
        return {"$ref": f"#/$defs/{hint.__name__}"}
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        name = hint.__name__
        if name not in definitions:
            definitions[name] = {}  # The type may contain itself, so its name is reserved first.
            definitions[name] = _dataclass_schema(hint, definitions)
        return {"$ref": f"#/$defs/{name}"}
    raise TypeError(f"{hint!r} has no JSON Schema")


def _metrics_schema() -> dict[str, Json]:
    """The JSON Schema of a record's summary, to which plug-ins may add metrics."""
    ALL.load_own()
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


def _summary(cls: Any) -> str:
    text = " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())
    return _NONE.sub("null", text)


def _descriptions(cls: Any) -> dict[str, str]:
    """Descriptions of attributes, from the docstrings of a class and of its base classes."""
    by_name: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        lines = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")[2].splitlines()
        names: Sequence[str] = ()
        for line in lines:
            if entry := _ENTRY.fullmatch(line):
                names = entry[1].split(", ")
                by_name |= dict.fromkeys(names, entry[2])
            elif line.startswith("    "):
                by_name |= {name: f"{by_name[name]} {line.strip()}" for name in names}
            elif line:
                break
    return {name: _NONE.sub("null", text) for name, text in by_name.items()}


def schema_files() -> dict[str, str]:
    """The contents of all schema files, by file name."""
    return {
        f"{name}.schema.json": json.dumps(schema_of_dataclass(cls, title), indent=1) + "\n"
        for name, (cls, title) in DOCUMENTS.items()
    }


if __name__ == "__main__":
    docs = Path(sys.argv[1])
    for page, tables in PAGES.items():
        text = (docs / page).read_text(encoding="utf-8")
        for name, made in tables().items():
            text = replace_marked_table(text, name, made)
        (docs / page).write_text(text, encoding="utf-8")
    for name, text in schema_files().items():
        (docs / "schemas" / name).write_text(text, encoding="utf-8")
