"""Campaigns whose processes have given results: what is stored, resumed and run again."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cnnbench.base.terminal import ChildProcessReporter
from cnnbench.campaigns.processes.campaign import (
    Campaign,
    ProcessRequest,
    RequestBatch,
    measure_process,
    run_process,
)
from cnnbench.campaigns.processes.child import ProcessResult
from cnnbench.campaigns.processes.identity import CodeChangedError
from cnnbench.campaigns.processes.journal import digest
from cnnbench.campaigns.processes.outcome import (
    BenchmarkCommand,
    blank_record,
    full_disk_error_line,
    last_output_text,
    read_record,
)
from cnnbench.campaigns.processes.resolved import ResolvedRun
from cnnbench.campaigns.processes.results_dir import CampaignKind, ResultsFolder
from cnnbench.errors import BenchmarkError
from cnnbench.records.codec import encode
from cnnbench.records.run import KilledProcess, RunRecord
from cnnbench.records.subject import Subject

KIND = CampaignKind(command="tune", noun="search", subfolders=("logs", "race"))
OK = ProcessResult(0, 2.0, status="ok")
FAILED = ProcessResult(4, 2.0, status="failed", message="no good")
KILLED = ProcessResult(-9, 2.0, status="killed", message="killed", lost="killed by SIGKILL")


class Given(Campaign):
    """Runs nothing: takes the next of these results for each process.

    Args:
      document: of all processes.
      results: of the processes in their order.
    """

    def __init__(self, document: Any, *results: ProcessResult, cool_down: float = 0.0) -> None:
        self.said = io.StringIO()
        super().__init__(ChildProcessReporter(self.said), cool_down=cool_down)
        self._document, self._left = document, list(results)
        self.started: list[tuple[str, ...]] = []

    def run(
        self, commands: Sequence[BenchmarkCommand], timeout: float, turn_seconds: float = 0.0
    ) -> list[ProcessResult]:
        self.started.append(tuple(one.log.stem for one in commands))
        found = []
        for one in commands:
            one.log.write_text("said")
            found.append(replace(self._left.pop(0), document=self._document))
        return found


@pytest.fixture
def document(make_record: Callable[..., RunRecord]) -> Any:
    return make_record().to_dict()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[ResultsFolder]:
    with ResultsFolder(KIND, tmp_path / "r") as made:
        made.add_session_start()
        yield made


def again(folder: ResultsFolder) -> ResultsFolder:
    """The same folder in a later session."""
    folder.__exit__()
    return ResultsFolder(KIND, folder.folder, resume=True)


def request(folder: ResultsFolder, name: str = "a", **parts: Any) -> ProcessRequest:
    command = BenchmarkCommand(
        words=(),
        log=folder.log_path(name),
        record=folder.unfinished_path(folder.folder / f"{name}.part"),
        blank=blank_record("run", ("cnnbench",), ResolvedRun()),
    )
    target = folder.folder / "race" / f"{name}.json"
    usual = {"name": name, "label": name, "command": command, "target": target}
    return ProcessRequest(**{**usual, **parts})


def run(campaign: Campaign, folder: ResultsFolder, one: ProcessRequest) -> ProcessResult:
    return campaign.run_requests(run_process(folder, one, 60.0))


def batch(campaign: Campaign, folder: ResultsFolder, **parts: Any) -> list[ProcessResult]:
    """Runs a pair that counts as a whole."""
    requests = [request(folder, name) for name in ("p-a", "p-b")]

    def policy() -> Any:
        whole = {"name": "p", "label": "pair", "sides": ("a", "b"), "timeout": 60.0}
        return (yield RequestBatch(folder=folder, requests=requests, **{**whole, **parts}))

    return campaign.run_requests(policy())


def test_a_process_leaves_its_record_and_events(folder: ResultsFolder, document: Any) -> None:
    campaign = Given(document, OK)
    one = request(
        folder, place=lambda made, lost: {**made, "run_id": "placed"}, facts={"candidate": "c"}
    )
    ended = run(campaign, folder, one)
    assert (ended.status, ended.document["run_id"]) == ("ok", "placed")
    assert read_record(one.target).run_id == "placed"
    started, process = folder.journal.read("note", "process")
    assert (started["note"], started["names"]) == ("started", ["a"])
    data = one.target.read_bytes()
    assert (process["record"], process["sha256"]) == ("race/a.json", digest(data))
    assert {name: process[name] for name in ("name", "status", "seconds", "candidate")} == {
        **{"name": "a", "status": "ok", "seconds": 2.0, "candidate": "c"}
    }
    assert process["images_per_sec"] == pytest.approx(30.0)
    assert campaign.mean_process_seconds(None) == 2.0


def test_what_was_measured_is_not_measured_again(folder: ResultsFolder, document: Any) -> None:
    run(Given(document, OK), folder, request(folder))
    with again(folder) as later:
        campaign = Given(document)
        ended = run(campaign, later, request(later))
        assert (campaign.started, ended.status, ended.seconds) == ([], "ok", 2.0)
        assert ended.document == document
        # Unless something that it should leave has gone.
        campaign = Given(document, OK)
        run(campaign, later, request(later, leaves=later.folder / "none"))
        assert campaign.started == [("a",)]


@pytest.mark.parametrize(
    ("answers", "runs"), [(("ok",), [("a",)]), (("ok", "failed"), []), ((), [("a",)])]
)
def test_a_failure_is_an_answer_where_it_is_one(
    folder: ResultsFolder,
    make_record: Callable[..., RunRecord],
    answers: tuple[str, ...],
    runs: list[tuple[str, ...]],
) -> None:
    failed = make_record(error=("BenchmarkError", "no good")).to_dict()
    aside = folder.folder / "race" / "a-failed.json"
    one = request(folder, failed=aside, answers=answers)
    assert run(Given(failed, FAILED), folder, one).message == "no good"
    assert aside.exists() != ("failed" in answers)
    with again(folder) as later:
        campaign = Given(failed, FAILED)
        ended = run(campaign, later, replace(request(later, failed=aside), answers=answers))
        assert campaign.started == runs
        assert (ended.status, ended.message) == ("failed", "no good")


def test_a_success_removes_the_record_of_an_earlier_failure(
    folder: ResultsFolder, document: Any
) -> None:
    aside = folder.folder / "race" / "a-failed.json"
    folder.write(aside, b"{}")
    run(Given(document, OK), folder, request(folder, failed=aside))
    assert not aside.exists()


def test_a_process_without_a_record_leaves_none(folder: ResultsFolder, document: Any) -> None:
    run(Given(document, OK), folder, request(folder, target=None))
    assert not [*folder.folder.rglob("*.json")]
    with again(folder) as later:
        campaign = Given(document)
        assert run(campaign, later, request(later, target=None)).status == "ok"
        assert campaign.started == []


def test_a_record_that_cannot_be_read_is_kept_aside(folder: ResultsFolder, document: Any) -> None:
    ended = replace(FAILED, unusable=b"{half")
    one = request(folder)
    run(Given(document, ended), folder, one)
    assert one.target.with_suffix(".unusable").read_bytes() == b"{half"


def test_a_pair_is_stored_as_a_whole(folder: ResultsFolder, document: Any) -> None:
    campaign = Given(document, OK, OK)
    batch(campaign, folder)
    race = folder.folder / "race"
    assert {path.name for path in race.iterdir()} == {"p-a.json", "p-b.json"}
    with again(folder) as later:
        campaign = Given(document)
        assert [ended.status for ended in batch(campaign, later)] == ["ok", "ok"]
        assert campaign.started == []


@pytest.mark.parametrize(("turns", "started"), [(0.0, [("p-b",)]), (0.3, [("p-a", "p-b")])])
def test_a_pair_that_was_cut_goes_on_or_begins_again(
    folder: ResultsFolder, document: Any, turns: float, started: list[tuple[str, ...]]
) -> None:
    with pytest.raises(IndexError):
        batch(Given(document, OK), folder)
    with again(folder) as later:
        campaign = Given(document, OK, OK)
        batch(campaign, later, turn_seconds=turns)
        assert campaign.started == started


def test_a_pair_that_was_killed_is_measured_again(folder: ResultsFolder, document: Any) -> None:
    campaign = Given(document, OK, KILLED, OK, OK)
    seen: list[Sequence[KilledProcess]] = []

    def place(made: Any, lost: Sequence[KilledProcess]) -> Any:
        seen.append(tuple(lost))
        return made

    requests = [request(folder, name, place=place) for name in ("p-a", "p-b")]

    def policy() -> Any:
        return (
            yield RequestBatch(
                folder=folder,
                requests=requests,
                timeout=60.0,
                name="p",
                label="pair",
                sides=("a", "b"),
                repeated_if_killed=True,
            )
        )

    ended = campaign.run_requests(policy())
    assert [one.status for one in ended] == ["ok", "ok"]
    assert campaign.started == [("p-a",), ("p-b",), ("p-a",), ("p-b",)]
    killed = KilledProcess(side="b", how="killed by SIGKILL")
    assert seen == [(), (), (killed,), (killed,)]
    (lost,) = folder.journal.read("lost")
    assert (lost["pair"], lost["again"], lost["lost"]) == ("p", True, [encode(killed)])
    assert sorted(path.name for path in (folder.folder / "logs").glob("*lost*.log")) == [
        *("p-a-lost.log", "p-b-lost.log")
    ]
    assert "measured again" in campaign.said.getvalue()


@pytest.mark.parametrize(
    ("results", "repeated", "runs"),
    [
        ([KILLED, OK], False, 2),
        ([KILLED, OK] * 2, True, 4),
        # One that failed by itself would fail again.
        ([KILLED, FAILED], True, 2),
    ],
)
def test_attempts_are_limited(
    folder: ResultsFolder, document: Any, results: list[ProcessResult], repeated: bool, runs: int
) -> None:
    campaign = Given(document, *results)
    ended = batch(campaign, folder, repeated_if_killed=repeated)
    assert len(campaign.started) == runs
    assert ended[0].status == "killed"


def test_code_that_changes_between_processes_ends_a_campaign(
    tmp_path: Path, make_record: Callable[..., RunRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    revisions = iter("aab")
    name = "cnnbench.campaigns.processes.campaign"

    def ended(command: Any, result: ProcessResult, facts: Any) -> ProcessResult:
        subject = Subject(repository="o/r", revision=next(revisions) * 40, dirty=False)
        return replace(result, document=make_record(subject=subject).to_dict())

    monkeypatch.setattr(f"{name}.execute", lambda command, timeout: OK)
    monkeypatch.setattr(f"{name}.add_record_and_status", ended)
    campaign = Campaign(ChildProcessReporter(io.StringIO()))
    command: Any = SimpleNamespace(folder=None)
    assert [one.status for one in campaign.run([command, command], 1.0)] == ["ok", "ok"]
    with pytest.raises(CodeChangedError, match="o/r"):
        campaign.run([command], 1.0)


def test_processes_in_time_slices_share_their_time_equally(
    document: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, times = "cnnbench.campaigns.processes.campaign", iter((10.0, 16.0))
    monkeypatch.setattr(f"{name}.time.monotonic", lambda: next(times))
    monkeypatch.setattr(
        f"{name}.execute_interleaved", lambda commands, *more: [OK for _ in commands]
    )
    monkeypatch.setattr(
        f"{name}.add_record_and_status",
        lambda command, result, facts: replace(result, document=document),
    )
    campaign = Campaign(ChildProcessReporter(io.StringIO()))
    command: Any = SimpleNamespace(folder=None)
    ended = campaign.run([command, command], 60.0, turn_seconds=0.5)
    assert [one.seconds for one in ended] == [3.0, 3.0]


def test_the_last_words_of_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "two" in last_output_text("one\ntwo\n\n")
    assert "one" not in last_output_text("one\ntwo\n\n")
    assert "error: x" in last_output_text("error: x\ncnnbench: at /a/plugin.py:3\n")
    assert last_output_text("\n") == "no output"
    assert full_disk_error_line(tmp_path / "log") == ""
    monkeypatch.setattr("os.statvfs", lambda path: SimpleNamespace(f_bavail=0))
    assert "No space left" in full_disk_error_line(tmp_path / "log")


def test_a_process_whose_record_is_needed_must_not_fail(
    folder: ResultsFolder, document: Any
) -> None:
    record = Given(document, OK).run_requests(measure_process(folder, request(folder), 60.0))
    assert record.run_id == document["run_id"]
    campaign = Given(document, FAILED)
    with pytest.raises(BenchmarkError, match="process b failed: no good"):
        campaign.run_requests(measure_process(folder, request(folder, "b"), 60.0))
