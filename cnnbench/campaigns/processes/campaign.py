"""Measuring processes: run one after the other or in turn, judged and reported.

Processes in turn start side by side. From the moment all have started, at most one of them runs: it
holds the turn, and the others sleep in a read (`cnnbench.run.runtime.turns`). Waiting processes get
the turn in rotation, first once to warm up, then repeatedly for their timed steps; when none has
any left, each once more to its end. A child that ends drops out; one that never waits is waited
for.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from cnnbench.base import plugins
from cnnbench.base.interrupts import LONGEST_WAIT_SECONDS, SHORTEST_GRACE
from cnnbench.base.text.numbers import number
from cnnbench.base.text.progress import Reporter
from cnnbench.base.text.terminal import print_notice
from cnnbench.campaigns.processes.child import Child, Command, Ended, execute, start, stop
from cnnbench.campaigns.processes.outcome import Measuring, judge
from cnnbench.campaigns.processes.question import ChangedError, Question
from cnnbench.campaigns.processes.results_dir import Journal
from cnnbench.records.load import record_of
from cnnbench.records.metrics.figures import throughput
from cnnbench.records.subject import Subject
from cnnbench.run.runtime.turns import GO_ON, VARIABLE, WAITS_AFTER_STEPS


def execute_in_turn(
    commands: Sequence[Command], timeout: float, turn_seconds: float
) -> list[Ended]:
    """Runs commands to their ends, each in its own process group; the first has the first turn.

    Each may run for `timeout` seconds, excluding its waits, until it is stopped; see `execute`.
    """
    with contextlib.ExitStack() as stack:
        members: list[_Member] = []
        try:
            for command in commands:
                ours, theirs = socket.socketpair()
                stack.callback(ours.close)
                with theirs:
                    variables = {VARIABLE: f"{theirs.fileno()}:{turn_seconds!r}"}
                    own = replace(command, environment={**command.environment, **variables})
                    child = start(own, inherited=theirs.fileno())
                members.append(_Member(stack.enter_context(child), ours))
            _take_turns(members, timeout)
        except KeyboardInterrupt:
            stop([one.child for one in members if one.ended is None], print_notice)
            raise
    return [one.ended for one in members if one.ended is not None]


class _Member:
    """A child that takes turns."""

    def __init__(self, child: Child, link: socket.socket) -> None:
        self.child = child
        self.link: socket.socket | None = link
        self.ended: Ended | None = None
        self.waits = self.steps_done = False
        self._used = 0.0
        self._since = time.monotonic()

    @property
    def used(self) -> float:
        """Seconds that it has run, without its waits."""
        return self._used + (0.0 if self.waits else time.monotonic() - self._since)

    def listen(self) -> None:
        assert self.link is not None
        try:
            said = self.link.recv(16)
        except ConnectionError:
            said = b""
        if not said:  # closed: the child needs no further turn
            self.link.close()
            self.link = None
            return
        self._used = self.used
        self.waits = True
        self.steps_done = said.endswith(WAITS_AFTER_STEPS)

    def go_on(self) -> None:
        assert self.link is not None
        self.waits, self._since = False, time.monotonic()
        with contextlib.suppress(ConnectionError):  # it has died; its guard will say how
            self.link.sendall(GO_ON)


def _take_turns(members: Sequence[_Member], timeout: float) -> None:
    last = -1
    while left := [one for one in members if one.ended is None]:
        running = [one for one in left if not one.waits]
        if not running:
            last = _next(members, last)
            members[last].go_on()
            continue
        patience = max(0.0, timeout - max(one.used for one in running))
        links = {one.link.fileno(): one for one in left if one.link is not None}
        guards = {one.child.fileno(): one for one in left}
        patience = min(patience, LONGEST_WAIT_SECONDS)
        ready, _, _ = select.select([*links, *guards], [], [], patience)
        for descriptor in ready:
            if descriptor in links:
                links[descriptor].listen()
        for descriptor in ready:
            if descriptor in guards:
                guards[descriptor].ended = guards[descriptor].child.wait(SHORTEST_GRACE)
        late = [one for one in running if one.ended is None and one.used >= timeout]
        for one, ended in zip(late, stop([one.child for one in late]), strict=True):
            one.ended = ended


def _next(members: Sequence[_Member], last: int) -> int:
    """The next holder of the turn: in rotation, those with timed steps left first."""
    order = [(last + step) % len(members) for step in range(1, len(members) + 1)]
    waiting = [number for number in order if members[number].ended is None]
    return next((n for n in waiting if not members[n].steps_done), waiting[0])


class Campaign:
    """The processes of one command, with `cool_down` seconds between them.

    `facts` describe this machine, for the records of processes that leave none. Processes with the
    same key measure the same; the remaining time is estimated from the wall times by key. The code
    that `question` names must not change.
    """

    def __init__(
        self,
        reporter: Reporter,
        facts: Mapping[str, Any] | None = None,
        cool_down: float = 0.0,
        question: Question | None = None,
    ) -> None:
        self.reporter = reporter
        self.facts = facts or {}
        self.cool_down = cool_down
        self.question = question
        self._first: dict[str, object] = {}
        self._warned = {""}
        self._known: dict[Hashable, list[float]] = {}
        self._now: list[float] = []
        self._done = 0
        self._total = 0
        self._waiting: list[Hashable] = []
        self._dropped: set[Hashable] = set()

    def expect(self, keys: Iterable[Hashable], done: int = 0) -> None:
        """Adds processes to be run, by keys in their order, and `done` that were run before."""
        self._waiting += keys
        self._done += done
        self._total = self._done + len(self._waiting)

    def drop(self, *keys: Hashable) -> None:
        """Removes processes of these keys from those that will be run."""
        self._dropped.update(keys)

    def expects(self, key: Hashable) -> bool:
        """Whether processes of a key are still to be run."""
        return key not in self._dropped

    def begin(self, label: str) -> None:
        """Pauses for `cool_down`, and shows the next process."""
        while not self.expects(self._waiting[0]):
            del self._waiting[0]
            self._done += 1
        if self._done and self.cool_down:
            time.sleep(self.cool_down)
        self.reporter.started(self._done + 1, self._total, label, self._left())

    def run(
        self, commands: Sequence[Measuring], timeout: float, turn_seconds: float = 0.0
    ) -> list[Ended]:
        """Runs processes to their ends; does not raise for their failures.

        Each may run for `timeout` seconds, excluding its waits. They step in turns of
        `turn_seconds`, all alive; 0: one after the other. On KeyboardInterrupt all have been ended.
        ChangedError if the code has changed since the campaign began, or between two processes.
        """
        if self.question is not None:
            self.question.check()
        if not turn_seconds:
            return [self._judged(one, execute(one, timeout)) for one in commands]
        begun = time.monotonic()
        ended = execute_in_turn(commands, timeout, turn_seconds)
        share = (time.monotonic() - begun) / len(commands)
        return [
            replace(self._judged(*one), seconds=share) for one in zip(commands, ended, strict=True)
        ]

    def _judged(self, command: Measuring, ended: Ended) -> Ended:
        """An ended process with its record; warns if the commit is unknown.

        ChangedError if an earlier process of the same code found another state of it.
        """
        judged = judge(command, ended, self.facts)
        record = record_of(judged.document)
        subject = record.subject or Subject()
        # Another version of cnnbench may say less about changes.
        version = record.environment.get("cnnbench_version")
        place = repr((command.folder, version, subject.repository, *plugins.files(record.config)))
        state = (subject.revision, subject.dirty, subject.changes)
        if self._first.setdefault(place, state) != state:
            raise ChangedError.of(f"repository {subject.repository}")
        if subject.warning not in self._warned:
            self._warned.add(subject.warning)
            self.reporter.warning(subject.warning)
        return judged

    def end(self, label: str, told: str, seconds: float) -> None:
        """Reports the first expected process as done, with its main result or its error."""
        self.remember(self._waiting.pop(0), seconds)
        self._now.append(seconds)
        self._done += 1
        self.reporter.ended(self._done, self._total, label, told, seconds, self._left())

    def end_measuring(
        self, journal: Journal, name: str, label: str, ended: Ended, **facts: object
    ) -> None:
        """`end` of a process that leaves a record, noted in a journal."""
        speed = throughput(ended.record)
        journal.add(
            "process",
            name=name,
            seconds=round(ended.seconds, 3),
            images_per_sec=speed,
            problem=ended.message,
            **facts,
        )
        told = ended.message or ("ok" if speed is None else f"{number(speed)} images/sec")
        self.end(label, told, ended.seconds)

    def remember(self, key: Hashable, seconds: float) -> None:
        """Adds the wall time of a process of an earlier campaign."""
        self._known.setdefault(key, []).append(seconds)

    def seconds_of(self, key: Hashable) -> float | None:
        """The mean wall time of processes of a key; None without any."""
        return fmean(self._known[key]) if key in self._known else None

    def _left(self) -> float | None:
        """Estimated seconds for the processes to be run; None if there is no estimate.

        A key without a wall time takes the mean of this campaign.
        """
        total = 0.0
        for key in filter(self.expects, self._waiting):
            known = self._known.get(key) or self._now
            if not known:
                return None
            total += fmean(known) + self.cool_down
        return total
