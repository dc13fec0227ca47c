"""JSON Schemas of all documents that cnnbench writes, from their dataclasses.

``python -m cnnbench.cli.schemas docs/schemas`` writes them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cnnbench.campaigns.processes.results_dir import JournalEvent
from cnnbench.cli.commands.env import EnvDocument
from cnnbench.cli.commands.models import ModelsDocument
from cnnbench.judge.history.document import HistoryDocument
from cnnbench.judge.report.renderers.json import ComparisonDocument
from cnnbench.lab.predict.predict import PredictionDocument
from cnnbench.records.allreduce import AllReduceRecord
from cnnbench.records.explanation import Explanation
from cnnbench.records.json_schema import schema_of
from cnnbench.records.roofline import Roofline
from cnnbench.records.run import RunRecord
from cnnbench.records.step_profile import StepProfile
from cnnbench.records.strategies import StrategiesDocument
from cnnbench.records.tune import TuneDocument
from cnnbench.testing import BaselineDocument

DOCUMENTS: Mapping[str, tuple[type[Any], str]] = {
    "run": (RunRecord, "cnnbench run --result_json=FILE"),
    "allreduce": (AllReduceRecord, "cnnbench allreduce --result_json=FILE"),
    "allreduce_prediction": (
        PredictionDocument,
        "cnnbench allreduce --predict --result_json=FILE",
    ),
    "comparison": (ComparisonDocument, "cnnbench compare --format=json, cnnbench ab --format=json"),
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
