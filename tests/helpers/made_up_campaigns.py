"""Campaigns on a machine whose processes are functions: they write records, and nothing is started.

The speed of a process follows from its flags and its folder, by what an experiment says.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cnnbench.campaigns.ab import side as side_flags
from cnnbench.campaigns.bisect import search
from cnnbench.campaigns.launch import resolve_run
from cnnbench.campaigns.processes import campaign, identity
from cnnbench.campaigns.processes.child import ProcessResult
from cnnbench.campaigns.processes.outcome import BenchmarkCommand
from cnnbench.cli import main
from cnnbench.cli.commands import sides
from cnnbench.flags import parse_args
from cnnbench.machine import facts, repository
from cnnbench.records.codec import encode
from cnnbench.records.run import RunRecord
from cnnbench.records.subject import Subject

Make = Callable[[Mapping[str, str], str, str], RunRecord | None]
"""Makes the record of a process from its flags, its folder and its name; None if it fails."""


class MadeUpMachine:
    """What processes on it leave, and what is not looked up again for each experiment."""

    def __init__(self, make: Make, seed: int) -> None:
        self._make = make
        self._draw = random.Random(seed)

    def execute(self, command: BenchmarkCommand, timeout: float) -> ProcessResult:
        """In place of a process: writes its record, or nothing."""
        words = [word for word in command.words if word.startswith("--")]
        values = dict(word[2:].partition("=")[::2] for word in words)
        name = command.log.stem
        command.log.parent.mkdir(parents=True, exist_ok=True)
        command.log.write_text("about to measure\n")
        if "train_dir" in values:
            Path(values["train_dir"]).mkdir(parents=True, exist_ok=True)
        record = self._make(values, str(command.folder or ""), name)
        if record is None:
            command.log.write_text("no good\n")
            return ProcessResult(4, 1.0)
        config = {**command.blank.config, **record.config}
        record = replace(record, config=config, explicit_flags=command.blank.explicit_flags)
        Path(values["result_json"]).write_text(record.to_json())
        return ProcessResult(0, self._draw.uniform(1.0, 3.0), max_rss_bytes=2**30)


_MACHINE = {"hostname": "box", "cpu_model": "Fast CPU", "logical_cpus": 8, "usable_cpus": 8}
_MACHINE |= {"tensorflow_version": "2.21.0", "memory_bytes": 2**34}


def _answer(side: Any, code: str, *arguments: str, use_own_cnnbench: bool, timeout: float) -> Any:
    """In place of a process that resolves the flags of a side."""
    resolved = resolve_run(parse_args(arguments[1:]))
    text = json.dumps({"error": None, "resolved": encode(resolved)})
    return SimpleNamespace(returncode=0, stdout=text.encode())


@contextlib.contextmanager
def on(machine: MadeUpMachine, folder: Path) -> Iterator[pytest.MonkeyPatch]:
    """Campaigns run on the machine meanwhile, in a folder."""

    @contextlib.contextmanager
    def worktree(commit: str, repository: Any = ".") -> Iterator[Path]:
        place = folder / "worktrees" / commit
        place.mkdir(parents=True, exist_ok=True)
        yield place

    def subject(place: Any) -> Subject:
        return Subject(repository="nets", revision=Path(place or ".").name, dirty=False)

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(campaign, "execute", machine.execute)
        patch.setattr(side_flags, "run_code", _answer)
        patch.setattr(identity, "source_digest", lambda *_: "0" * 32)
        patch.setattr(facts, "collect", lambda: dict(_MACHINE))
        for owner in (search, side_flags):
            patch.setattr(owner, "worktree", worktree)
        patch.setattr(sides, "resolve_commit", lambda flag, text: text)
        patch.setattr(repository, "read_repository_state", subject)
        patch.setattr(repository, "measured_code", lambda *_: Subject(revision="a" * 40))
        yield patch


def run(*words: str) -> None:
    """A command line in this process that comes to a result."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([*words])
    assert code in (0, 1, 3, 4, 130), err.getvalue()
    assert "Traceback" not in err.getvalue(), err.getvalue()
