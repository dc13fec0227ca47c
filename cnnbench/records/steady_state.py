"""The steady state of a run, from its warm-up and its timed steps as one series."""

from __future__ import annotations

from dataclasses import dataclass

from cnnbench.base.stats.steady_state import SteadyState, steady_state
from cnnbench.records.run import RunRecord


@dataclass(frozen=True, slots=True)
class RunSteadyState:
    """The steady state of a run; indices count from the first warm-up step."""

    series: SteadyState
    warmup_steps: int
    timed_steps: int

    @property
    def unsteady_timed_steps(self) -> int | None:
        """Timed steps before the steady state; None if it was not reached."""
        if self.series.start is None:
            return None
        return max(0, self.series.start - self.warmup_steps)


def run_steady_state(record: RunRecord) -> RunSteadyState:
    """The steady state computed from the step times of a record."""
    warmup, timed = record.warmup_step_seconds, record.step_seconds
    return RunSteadyState(steady_state(warmup + timed), len(warmup), len(timed))
