"""Results directory of a bisection: a journal, and the results of an experiment per step.

Every commit that was measured has a directory of `cnnbench ab` below it, named by its hash, so that
`report` and `history` read the whole. What is done follows from the journal and, of a step that
was not finished, from its pairs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from cnnbench.campaigns.bisect.search import Step
from cnnbench.campaigns.processes.results_dir import ResultsFolder
from cnnbench.errors import FlagError
from cnnbench.records.codec import encode

JOURNAL = "bisect.jsonl"
_STEP = frozenset(field.name for field in fields(Step))


class BisectFolder(ResultsFolder):
    """The directory, held by one bisection at a time.

    Attributes:
      steps: what is known from before, by commit.

    Args:
      folder: value of --results; made if it is not there.
      question: what is asked, as JSON values; a bisection can only go on with the same.
      resume: go on with the one that is there.

    Raises:
      FlagError: it cannot be used, another bisection holds it, it is not empty without `resume`,
        or it holds the answer to another question.
    """

    def __init__(self, folder: str, question: Mapping[str, Any], *, resume: bool) -> None:
        begun = os.path.exists(os.path.join(folder, JOURNAL))
        hint = "go on with what is there by --resume, or " if begun else ""
        super().__init__(folder, journal=JOURNAL, used=begun and resume, hint=hint)
        asked = encode(dict(question))
        try:
            self.steps = self._read(asked)
        except FlagError:
            self.__exit__()
            raise
        self.journal.add("bisect", question=asked, steps=len(self.steps))

    def add(self, step: Step) -> None:
        """Appends an answer to the journal.

        Raises:
          BenchmarkError: it cannot be written.
        """
        self.journal.add("step", **asdict(step))

    def _read(self, asked: Any) -> dict[str, Step]:
        """Reads earlier answers."""
        steps: dict[str, Step] = {}
        for event in self.journal.read():
            if event.get("event") == "bisect" and event.get("question") != asked:
                then = event.get("question") or {}
                differ = [name for name in asked if then.get(name) != asked[name]]
                reason = f"holds a bisection of another {', '.join(differ)}; name another folder"
                raise FlagError("results", str(self.folder), reason)
            if event.get("event") == "step":
                step = Step(**{name: event[name] for name in _STEP & event.keys()})
                steps[step.commit] = step
        return steps
