"""What a campaign asks for: the next processes, given the results so far.

A campaign is a generator (`ProcessRequests`), which `Campaign.run_requests` runs. It yields batches
of requested processes and receives their results. Its decisions depend only on these results and on
its seed. Results that are already in the results directory are not measured again, so a generator
that is restarted continues where an earlier session ended.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

from cnnbench.campaigns.processes.child import ProcessResult
from cnnbench.campaigns.processes.outcome import BenchmarkCommand
from cnnbench.campaigns.processes.results_dir import ResultsFolder
from cnnbench.errors import BenchmarkError
from cnnbench.records.run import KilledProcess, RunRecord

_Case = TypeVar("_Case", bound=Hashable)
_Result = TypeVar("_Result")


@dataclass(frozen=True, kw_only=True)
class ProcessRequest:
    """A process that a campaign should run, with the paths of its record and other outputs.

    Attributes:
      name: name in the journal, unique in a folder.
      label: name in progress lines.
      command: command of the process, which writes its record to a temporary file.
      key: two processes with equal keys take approximately the same time.
      target: path at which the record is stored; None to store it only if the process fails.
      failed: path for the record if a process of the batch fails; by default, `target`.
      answers: final statuses. If a process has another status, a later session runs it again.
      leaves: path of an additional required output, which the process writes to the `unfinished`
        path.
      place: function that adds the process's place in the campaign to its record, given the earlier
        attempts of its batch.
      facts: additional keys of the process's event in the journal.
    """

    name: str
    label: str
    command: BenchmarkCommand
    key: Hashable = None
    target: Path | None = None
    failed: Path | None = None
    answers: Sequence[str] = ("ok",)
    leaves: Path | None = None
    place: Callable[[Mapping[str, Any], Sequence[KilledProcess]], Mapping[str, Any]] = (
        lambda document, lost: document
    )
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RequestBatch:
    """Processes that a campaign should run, interleaved or one after the other, with their limits.

    Attributes:
      folder: results directory. Its journal gets the events.
      requests: processes, in the order in which they run or get their first time slice.
      later_keys: keys of the processes that will probably follow.
      timeout: seconds for each process, excluding its waits.
      turn_seconds: length of a time slice of simultaneous processes; 0 to run one process after
        another.
      name, label: names of the whole batch in the journal and in progress lines.
      standing: how far the campaign is, for the line that a terminal shows while a process runs; if
        empty, the number and the label of the process.
      sides: names of the processes if the batch is only valid as a whole; otherwise empty.
      repeats: number of further attempts if processes were killed from outside.
      most_repeats: number of further attempts for all batches of the folder together.
    """

    folder: ResultsFolder
    requests: Sequence[ProcessRequest]
    later_keys: Sequence[Hashable] = ()
    timeout: float
    turn_seconds: float = 0.0
    name: str = ""
    label: str = ""
    standing: str = ""
    sides: Sequence[str] = ()
    repeats: int = 0
    most_repeats: int = 0


ProcessRequests: TypeAlias = Generator[RequestBatch, Sequence[ProcessResult], _Result]
"""A generator that requests processes and receives their results; see `Campaign.run_requests`."""


def run_process(
    folder: ResultsFolder,
    request: ProcessRequest,
    timeout: float,
    later_keys: Sequence[Hashable] = (),
    standing: str = "",
) -> ProcessRequests[ProcessResult]:
    """Requests a single process of a campaign, and returns its result; see `RequestBatch`."""
    (ended,) = yield RequestBatch(
        folder=folder,
        requests=[request],
        later_keys=later_keys,
        timeout=timeout,
        standing=standing,
    )
    return ended


def measure_process(
    folder: ResultsFolder,
    request: ProcessRequest,
    timeout: float,
    later_keys: Sequence[Hashable] = (),
    standing: str = "",
) -> ProcessRequests[RunRecord]:
    """Requests a single process like `run_process`, and returns the record of its run.

    Raises BenchmarkError if the process failed.
    """
    ended = yield from run_process(folder, request, timeout, later_keys, standing)
    if ended.message:
        raise BenchmarkError(f"process {request.name} failed: {ended.message}")
    return ended.record


class Rounds(Generic[_Case]):
    """The order in which a campaign measures its cases: iterates over the cases of `order`, without
    those that are left out meanwhile.

    Yields the case, the number of the round, and the keys (case, whether the round is 0) of the
    processes that will probably follow.

    Attributes:
      order: pairs of a case and a round number.
      left_out: cases that are left out from now on, for example because they have failed.
    """

    def __init__(self, order: Sequence[tuple[_Case, int]]) -> None:
        self.order = order
        self.left_out: set[_Case] = set()

    def __iter__(self) -> Iterator[tuple[_Case, int, list[Hashable]]]:
        for place, (case, at) in enumerate(self.order, start=1):
            if case not in self.left_out:
                later = [turn for turn in self.order[place:] if turn[0] not in self.left_out]
                yield case, at, [(other, not number) for other, number in later]


def make_rounds(
    cases: Iterable[_Case],
    repeats: int,
    seed: int | None,
    is_due: Callable[[_Case, int], bool] = lambda case, at: at > 0,
) -> Rounds[_Case]:
    """Creates the order of round 0 (for example, of searches for a batch size) and of the rounds 1
    to `repeats`.

    `is_due` says whether a case takes part in a round. `seed` shuffles each round; None keeps the
    order of the cases.
    """
    cases, generator, order = tuple(cases), random.Random(seed), []
    for at in range(repeats + 1):
        due_cases = [case for case in cases if is_due(case, at)]
        if seed is not None:
            generator.shuffle(due_cases)
        order += [(case, at) for case in due_cases]
    return Rounds(order)
