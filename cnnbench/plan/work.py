"""The kind of work of a run."""

from __future__ import annotations

import enum

from cnnbench.flags.groups.run import EVAL_DURING_TRAINING, RunParams


class Work(enum.Enum):
    """Kind of work; its value is the text in the header."""

    TRAINING = "training"
    TRAINING_AND_EVALUATION = "training + evaluation"
    EVALUATION = "evaluation"
    FORWARD = "forward only"
    INPUT = "input only"

    @classmethod
    def of(cls, flags: RunParams) -> Work:
        """The kind that the flags ask for."""
        if flags.eval:
            return cls.EVALUATION
        if flags.forward_only:
            return cls.FORWARD
        if flags.input_only:
            return cls.INPUT
        during = any(getattr(flags, name) for name in EVAL_DURING_TRAINING)
        return cls.TRAINING_AND_EVALUATION if during else cls.TRAINING

    @property
    def trains(self) -> bool:
        """Whether weights are updated."""
        return self in (Work.TRAINING, Work.TRAINING_AND_EVALUATION)

    @property
    def evaluates(self) -> bool:
        """Whether weights are evaluated on the validation subset."""
        return self in (Work.EVALUATION, Work.TRAINING_AND_EVALUATION)

    @property
    def only_forward(self) -> bool:
        """Whether the network runs without gradients."""
        return self in (Work.EVALUATION, Work.FORWARD)
