"""What a flag affects, how it is compared, and which parts of a run use it."""

from __future__ import annotations

import enum


class Affects(enum.Enum):
    """What a flag changes."""

    RESULT = "what is computed, so that runs with different values are different measurements"
    TIME = "only how fast it is computed"
    NOTHING = "neither: what is shown, written or awaited outside of the timed steps"


class ComparedBy(enum.Enum):
    """What must be equal in two runs, so that one run is a repetition of the other."""

    VALUE = "the value"
    NUMBER = "the number of items: addresses and numbers of devices differ between machines"
    PRESENCE = "whether the flag is given: paths differ between machines"
    SEED = "nothing: times do not depend on a seed, and accuracy is compared over seeds"
    NOTHING = "nothing"


class RunPart(enum.Flag):
    """Parts of a run that use a flag, such as the update of weights. A flag may have several parts
    or none.
    """

    NONE = 0
    WORK = enum.auto()
    """Selects a different task than training."""
    NO_TIMED_STEPS = enum.auto()
    """Selects a task without timed steps of a network."""
    LENGTH = enum.auto()
    """Number of steps in the timed loop, and conditions that end it early."""
    BATCH = enum.auto()
    """Number of images per training step, on each device or on all devices."""
    WARM_UP = enum.auto()
    """Warm-up steps, which precede the timed steps."""
    EVALUATIONS = enum.auto()
    """When training pauses for an evaluation."""
    LEARNING_RATE = enum.auto()
    """The learning rate and its schedule."""
    UPDATE = enum.auto()
    """The update of weights. Has no effect in runs that update none."""
    AGGREGATION = enum.auto()
    """How gradients are packed and reduced. Has no effect on a single device."""
    ALGORITHM = enum.auto()
    """The algorithm that reduces gradients."""
    MIXING = enum.auto()
    """Mixing of training images in pairs, with their labels."""
    PROFILE = enum.auto()
    """A file about a step of the warm-up. Writing the file costs time."""
    THREADS = enum.auto()
    """Sizes of thread pools."""
    TASK = enum.auto()
    """The task of this process in its job, and the addresses of all tasks."""
    DISCOVERY = enum.auto()
    """Where a process reads its task and the addresses."""
    ROWS = enum.auto()
    """What the rows of ``cnnbench allreduce`` measure. Each row has its own value."""
    PREDICTED = enum.auto()
    """Applies to ``cnnbench allreduce --predict``, too."""
    PER_PROCESS = enum.auto()
    """A file or folder that a campaign chooses for each of its processes."""
    STEP_WORK = enum.auto()
    """Determines how much a step computes on a device. Unless it is known, runs are not
    comparable."""
    HEADER = enum.auto()
    """Needs no further line in the header of the output: a line of tf_cnn_benchmarks shows the
    value, or the value hardly affects the speed of a step."""
