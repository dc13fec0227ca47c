"""Variables with copies on towers, and exchange of values between towers while a step is built."""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast
from weakref import WeakKeyDictionary

import tensorflow as tf

from cnnbench.base.job import cpu_of_device

# Logical variables that can have a copy per tower.


class TowerVariable:
    """One logical variable: a copy that all towers share, or one copy per tower, in order.

    Attributes:
      name: canonical name, which does not depend on the mode and the number of towers.
    """

    def __init__(self, name: str, copies: Sequence[tf.Variable]) -> None:
        if not copies:
            raise ValueError(f"{name}: a tower variable needs at least one copy")
        first = copies[0]
        if len({copy.ref() for copy in copies}) != len(copies):
            raise ValueError(f"{name}: the same variable is given for two towers")
        for copy in copies[1:]:
            if copy.shape != first.shape or copy.dtype != first.dtype:
                raise ValueError(
                    f"{name}: copies differ: {first.shape} {first.dtype.name} and "
                    f"{copy.shape} {copy.dtype.name}"
                )
        self.name = name
        self.copies = tuple(copies)

    @property
    def primary(self) -> tf.Variable:
        """The first copy, which checkpoints contain and broadcasts send."""
        return self.copies[0]

    @property
    def shape(self) -> tf.TensorShape:
        """Static shape of each copy."""
        return self.primary.shape

    @property
    def dtype(self) -> tf.DType:
        """Dtype of each copy."""
        return self.primary.dtype

    def copy(self, tower: int) -> tf.Variable:
        """Returns the copy of the variable that `tower` uses."""
        if len(self.copies) == 1:
            return self.primary
        if not 0 <= tower < len(self.copies):
            raise IndexError(f"{self.name} has {len(self.copies)} copies, no copy {tower}")
        return self.copies[tower]

    def assign(self, value: tf.types.experimental.TensorLike) -> None:
        """Assigns a value to every copy."""
        for copy in self.copies:
            with tf.device(copy.device):
                copy.assign(value, read_value=False)

    def broadcast(self) -> None:
        """Copies the value of the first copy to all other copies, if there are any."""
        if len(self.copies) == 1:
            return
        value = read(self.primary)
        for copy in self.copies[1:]:
            with tf.device(copy.device):
                copy.assign(value, read_value=False)

    def __repr__(self) -> str:
        return f"<TowerVariable {self.name} {self.shape} copies={len(self.copies)}>"


def read(variable: tf.Variable) -> tf.Tensor:
    """Reads a variable by an operation on the variable's own device.

    `Variable.value` does not fix the device. `Variable.read_value` adds an identity operation,
    which copies between devices if the reader is on another device.
    """
    with tf.device(variable.device):
        value = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
    if tf.is_symbolic_tensor(value):
        handles_read.setdefault(value.graph, {})[value.op.inputs[0].name] = id(variable.handle)
    return value


handles_read: WeakKeyDictionary[tf.Graph, dict[str, int]] = WeakKeyDictionary()
"""For each graph, the `id` of every variable handle that `read` has used. The keys are the names of
the tensors that represent handles in the graph. TensorFlow stores this mapping only in an internal
attribute.
"""


def wait_for_assignments(devices: Iterable[str]) -> None:
    """Waits until assignments to variables on `devices` are complete, outside a traced step.

    An operation on another process returns as soon as it has been sent. Later operations run after
    it, but parts of a traced function are sent on another path and may run first. Therefore this
    function reads a value back: when it arrives, everything that was sent before has run.
    """
    answers = []
    for device in dict.fromkeys(map(cpu_of_device, devices)):
        # The devices of a lost worker do not exist; the next step fails with a better error.
        with contextlib.suppress(tf.errors.InvalidArgumentError), tf.device(device):
            answers.append(tf.timestamp())
    for answer in answers:
        answer.numpy()


# Building the towers of a step in threads that wait for each other.

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
    state = _capture_tensorflow_state()
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
    # The `visit` of a tower that has ended is None.
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


def _capture_tensorflow_state() -> State:
    """Returns a function that creates a context manager for use in another thread.

    In the context, the other thread has this thread's TensorFlow state: graph, device, name scope
    and control dependencies.
    """
    scope = _absolute_scope(tf.get_current_name_scope())
    # A new operation has the current graph, device and control dependencies as attributes.
    probe = None if tf.executing_eagerly() else tf.no_op("towers")
    if probe is not None:
        # By default, the threads that use a graph share its current device.
        probe.graph.switch_to_thread_local()

    @contextlib.contextmanager
    def enter_captured_state() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if probe is not None:
                stack.enter_context(probe.graph.as_default())
                # New threads start with the graph's state at the call of switch_to_thread_local.
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
        self.visit: _MeetingVisit | None = None  # The last visit; None when the tower has ended.
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
            self._wait_until_resumed()
            with state(), set_rendezvous(self._meet_other_towers):
                self.result = build(number)
            self.visit, self.done = None, True
        except _TowerEnded:
            pass
        except BaseException as error:
            self._error = error
        finally:
            self._paused.release()

    def _meet_other_towers(
        self, point: str, value: Any, merge: Callable[[list[Any]], Sequence[Any]]
    ) -> Any:
        self.visit = _MeetingVisit(
            point, value, merge, _absolute_scope(tf.get_current_name_scope())
        )
        self._paused.release()
        self._wait_until_resumed()
        return self.answer

    def _wait_until_resumed(self) -> None:
        if not self._ending:
            self._resume.acquire()
        if self._ending:
            raise _TowerEnded


def _absolute_scope(scope: str) -> str:
    """Adds a final slash to a TensorFlow name scope, so that it can be entered again.

    Without the slash, TensorFlow would create a nested scope.
    """
    return f"{scope}/" if scope else ""
