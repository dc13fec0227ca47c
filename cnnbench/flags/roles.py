"""What a flag is for: its role in the identity of a run, and the parts of a run that it feeds.

Declarations carry both, and lists of flags that are treated alike follow from them.
"""

from __future__ import annotations

import enum


class Counted(enum.Enum):
    """How much of a flag's value belongs to the identity of a run."""

    VALUE = "the value"
    PRESENCE = "whether it is given"
    NUMBER = "the number of items"
    NOTHING = "nothing"


class Role(enum.Enum):
    """The role of a flag, with the reason why only a part of its value, or nothing, counts."""

    IDENTITY = "decides what is computed, or how"
    PLUGIN = "a file with code of the user; sizes of networks are compared instead"
    PLACE = "a path or machine; every machine has places of its own"
    PROFILE = "a file about the step; that it is written costs time, its name does not"
    ITEMS = "addresses, or which of like devices; how many there are counts"
    OUTPUT = "a path that is written outside of the timed steps"
    DISPLAY = "what is shown outside of the timed steps"
    NOTE = "a note of the user"
    JOB = "how the processes of a job find each other, and how long they wait"
    UNTIMED = "changes only what happens outside of the timed steps"
    SEED = "time does not depend on it, and accuracy should be compared over seeds"

    @property
    def counted(self) -> Counted:
        """How much of the value belongs to the identity of a run."""
        return _COUNTED.get(self, Counted.NOTHING)


_COUNTED = {
    Role.IDENTITY: Counted.VALUE,
    Role.ITEMS: Counted.NUMBER,
    **dict.fromkeys((Role.PLUGIN, Role.PLACE, Role.PROFILE), Counted.PRESENCE),
}


class RunPart(enum.Flag):
    """Parts of a run; a flag may feed several, and most feed none that is treated apart."""

    NONE = 0
    WORK = enum.auto()
    """What to run instead of a training."""
    LENGTH = enum.auto()
    """Steps of the timed loop, and its early end."""
    WARM_UP = enum.auto()
    """Steps before the timed ones."""
    EVALUATIONS = enum.auto()
    """When a training pauses for an evaluation."""
    CHECKPOINTS = enum.auto()
    """When checkpoints are saved, and how many are kept."""
    LOSS_SCALE = enum.auto()
    """The loss scale of fp16."""
    LEARNING_RATE = enum.auto()
    """The learning rate and its schedule."""
    UPDATE = enum.auto()
    """The update of weights; without effect where none are updated."""
    CLIPPING = enum.auto()
    """Bounds of gradients."""
    AGGREGATION = enum.auto()
    """How gradients are joined and reduced; without effect for a single device."""
    ALGORITHM = enum.auto()
    """Which algorithm reduces gradients."""
    CROSS_DEVICE = enum.auto()
    """Reductions of the strategies of tf.distribute."""
    DISTRIBUTION = enum.auto()
    """Input that a strategy of tf.distribute distributes."""
    READING = enum.auto()
    """How the examples of a data set are read and prepared."""
    GPU = enum.auto()
    """Effective on GPUs only."""
    THREADS = enum.auto()
    """Sizes of pools of threads."""
    TASK = enum.auto()
    """Which process of a job this is, and the addresses of all."""
    DISCOVERY = enum.auto()
    """Where a process learns its task and the addresses."""
    ROWS = enum.auto()
    """What the rows of ``cnnbench allreduce`` measure; each has a value of its own."""
    TUNABLE = enum.auto()
    """Changes the speed, not what is trained."""
