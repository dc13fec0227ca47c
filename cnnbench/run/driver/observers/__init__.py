"""What happens between steps: logs, summaries, profiles, checks, checkpoints and evaluations."""

from cnnbench.run.driver.observers.observer import (
    Observer,
    PausingObserver,
    TrainingState,
    register_observer,
)

__all__ = ["Observer", "PausingObserver", "TrainingState", "register_observer"]
