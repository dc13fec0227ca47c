"""Lets towers exchange values while a step is built: each tower is built in a thread, and they wait
for each other.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import tensorflow as tf

_T = TypeVar("_T")
_R = TypeVar("_R")


Rendezvous: TypeAlias = "Callable[[str, Any, Callable[[list[Any]], Sequence[Any]]], Any]"
"""Function with the arguments and result of `merge_over_towers`: it waits for the other towers."""

_rendezvous: ContextVar[Rendezvous | None] = ContextVar("cnnbench_rendezvous", default=None)


@contextlib.contextmanager
def set_rendezvous(rendezvous: Rendezvous) -> Iterator[None]:
    """Sets the function that `merge_over_towers` calls in this thread, in a ``with`` statement."""
    token = _rendezvous.set(rendezvous)
    try:
        yield
    finally:
        _rendezvous.reset(token)


def merge_over_towers(point: str, value: _T, merge: Callable[[list[_T]], Sequence[_R]]) -> _R:
    """Waits for all towers, merges their values, and returns this tower's part of the result.

    For use while `build_towers_in_threads` builds the towers.

    Args:
      point: name of the point; all towers reach the same points in the same order.
      merge: called once, with the values of all towers in order; returns one result per tower. The
        function that tower 0 passed is called, in the name scope of tower 0 and without a device
        scope.
    """
    rendezvous = _rendezvous.get()
    if rendezvous is None:
        raise RuntimeError(
            f"{point}: run_towers(build, exchanges_values=True) must build the towers that "
            "exchange values"
        )
    return cast("_R", rendezvous(point, value, merge))


def build_towers_in_threads(build: Callable[[int], _T], count: int) -> list[_T]:
    """Builds each tower in its own thread; only one thread runs at a time, in tower order.

    A tower runs until it reaches a meeting point or is complete. All towers must reach the same
    points. Threads inherit the caller's graph, device, name scope, control dependencies and context
    variables, but not its gradient tapes and variable creators. After an exception, no tower is
    left running.
    """
    state = _capture_state()
    towers = [_TowerThread(number, build, state) for number in range(count)]
    try:
        while True:
            for tower in towers:
                tower.run_to_next_meeting()
            if all(tower.done for tower in towers):
                return [cast("_T", tower.result) for tower in towers]
            _merge_visits(towers)
    finally:
        for tower in towers:
            tower.end()


def _merge_visits(towers: Sequence[_TowerThread]) -> None:
    check_same_meeting_point([tower.visit.point if tower.visit else "its end" for tower in towers])
    # None for a tower that has ended, otherwise its call of `merge_over_towers`.
    visits = [tower.visit for tower in towers if tower.visit]
    with tf.name_scope(visits[0].scope):
        results = visits[0].merge([visit.value for visit in visits])
    for tower, result in zip(towers, results, strict=True):
        tower.answer = result


def check_same_meeting_point(points: Sequence[str]) -> None:
    """Raises an error if towers have reached different meeting points."""
    for number, point in enumerate(points):
        if point != points[0]:
            raise RuntimeError(
                f"towers diverge: tower 0 reached {points[0]}, tower {number} reached {point}"
            )


class _MeetingVisit(NamedTuple):
    """A tower's call of `merge_over_towers`: the arguments, and the tower's name scope."""

    point: str
    value: Any
    merge: Callable[[list[Any]], Sequence[Any]]
    scope: str


State: TypeAlias = "Callable[[], contextlib.AbstractContextManager[None]]"


def _capture_state() -> State:
    """Returns a function that creates a context manager for use in another thread.

    In the context, the other thread has this thread's TensorFlow state: graph, device, name scope
    and control dependencies.
    """
    scope = _absolute_scope(tf.get_current_name_scope())
    # Graph, device and control dependencies cannot be read directly, but a new operation has them
    # as attributes.
    probe = None if tf.executing_eagerly() else tf.no_op("towers")
    if probe is not None:
        # By default, all threads that use a graph share its current device; each tower needs its
        # own.
        probe.graph.switch_to_thread_local()

    @contextlib.contextmanager
    def enter_captured_state() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if probe is not None:
                stack.enter_context(probe.graph.as_default())
                # A new thread starts with the state that the graph has at this call.
                stack.enter_context(tf.device(None))
                stack.enter_context(tf.device(probe.device))
                stack.enter_context(tf.control_dependencies(None))
                stack.enter_context(tf.control_dependencies(list(probe.control_inputs)))
            if scope:
                stack.enter_context(tf.name_scope(scope))
            yield

    return enter_captured_state


class _TowerEnded(BaseException):
    """Exception that ends the thread of a waiting tower, in which it is raised."""


class _TowerThread:
    """A thread that builds one tower, and runs only while `run_to_next_meeting` waits for it."""

    def __init__(self, number: int, build: Callable[[int], Any], state: State) -> None:
        self.done = False
        self.result: Any = None
        self.visit: _MeetingVisit | None = None  # None after the end of the tower.
        self.answer: Any = None
        self._error: BaseException | None = None
        self._ending = False
        self._resume = threading.Semaphore(0)
        self._paused = threading.Semaphore(0)
        variables = contextvars.copy_context()
        self._thread = threading.Thread(
            target=lambda: variables.run(self._run_tower, number, build, state),
            name=f"cnnbench-tower-{number}",
            daemon=True,
        )
        self._thread.start()

    def run_to_next_meeting(self) -> None:
        """Runs the tower until its next meeting point or its end; re-raises its exceptions."""
        self._resume.release()
        self._paused.acquire()
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """Ends the tower by an exception if it is unfinished, and waits for its thread."""
        self._ending = True
        self._resume.release()
        self._thread.join()

    def _run_tower(self, number: int, build: Callable[[int], Any], state: State) -> None:
        try:
            self._wait()
            with state(), set_rendezvous(self._meet):
                self.result = build(number)
            self.visit, self.done = None, True
        except _TowerEnded:
            pass
        except BaseException as error:
            self._error = error
        finally:
            self._paused.release()

    def _meet(self, point: str, value: Any, merge: Callable[[list[Any]], Sequence[Any]]) -> Any:
        scope = _absolute_scope(tf.get_current_name_scope())
        self.visit = _MeetingVisit(point, value, merge, scope)
        self._paused.release()
        self._wait()
        return self.answer

    def _wait(self) -> None:
        if not self._ending:
            self._resume.acquire()
        if self._ending:
            raise _TowerEnded


def _absolute_scope(scope: str) -> str:
    """Adds a final slash to a TensorFlow name scope, so that it can be entered again.

    Without the slash, TensorFlow would create a nested scope.
    """
    return f"{scope}/" if scope else ""
