"""Numbers of the schemas of documents, on which programs that read the documents rely.

Tests cnnbench/records/all_reduce.py, cnnbench/records/campaigns.py,
cnnbench/records/explanation.py, cnnbench/records/load.py, cnnbench/records/profiles.py,
cnnbench/records/roofline.py and cnnbench/records/run.py.
"""

from __future__ import annotations

import pytest

from cnnbench.records.all_reduce import AllReduceRecord
from cnnbench.records.campaigns import TuneDocument
from cnnbench.records.codec import Document
from cnnbench.records.explanation import Explanation
from cnnbench.records.load import BaselineDocument
from cnnbench.records.profiles import StepProfile
from cnnbench.records.roofline import Roofline
from cnnbench.records.run import RunRecord

DOCUMENTS: dict[type[Document], str] = {
    AllReduceRecord: "allreduce",
    BaselineDocument: "baseline",
    Explanation: "explanation",
    Roofline: "roofline",
    RunRecord: "run",
    StepProfile: "step_profile",
    TuneDocument: "tune",
}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_kind_and_schema_of_a_document(document: type[Document]) -> None:
    assert (document.kind, document.schema) == (DOCUMENTS[document], 1)
