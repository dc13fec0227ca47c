"""Observers: what a run does between steps, such as logs, summaries, profiles, checks and
checkpoints.
"""

from cnnbench.run.driver.observers.observer import (
    Observer,
    PausingObserver,
    TrainingState,
    register_observer,
)

__all__ = ["Observer", "PausingObserver", "TrainingState", "register_observer"]
