"""Shares interrupts (Ctrl-C) between the workers of a job, so that all of them end at the same
step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from cnnbench.base.interrupts import handling_signals, raise_if_interrupted
from cnnbench.variable_mgr.workers import WorkerGroup

_CHECK_SECONDS = 1.0


class SharedInterrupts:
    """If one worker of a job is interrupted, interrupts all workers.

    Attributes:
      pending: whether this process was interrupted and has not yet informed the other workers.
    """

    def __init__(self, workers: WorkerGroup | None) -> None:
        self._workers = workers
        self.pending = False

    def sync_interrupts(self, pass_seconds: float) -> int:
        """Raises KeyboardInterrupt in all workers if one of the workers was interrupted.

        All workers call it between steps.

        Args:
          pass_seconds: duration of one pass of the caller's loop in this process.

        Returns:
          Number of passes until the next call. The chief needs about one second for them.
        """
        if self._workers is None:
            raise_if_interrupted()
            return 1
        passes = max(1, int(_CHECK_SECONDS / pass_seconds)) if self._workers.is_chief else 0
        pending, passes = self._workers.sum_over_workers([int(self.pending), passes])
        if pending:
            raise KeyboardInterrupt
        return int(passes)

    @contextmanager
    def sharing_interrupts(self) -> Iterator[None]:
        """A context in which Ctrl-C in one worker ends all workers after the same step."""
        if self._workers is None:
            yield
            return

        def note_interrupt(number: int, frame: FrameType | None) -> None:
            self.pending = True

        with handling_signals(note_interrupt):
            yield
            # Handles a signal that arrived after the block's last check.
            self.sync_interrupts(1.0)
