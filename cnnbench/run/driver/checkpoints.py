"""Saves and restores checkpoints.

A checkpoint contains each variable once, under its canonical name, for any number of copies. It
also contains the optimizer's slots and name, and an automatic loss scale. The format is that of
tf.train; `cnnbench.records.files` manages the files.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import tensorflow as tf

from cnnbench.base.job import Job
from cnnbench.base.urls import local_or_url_path
from cnnbench.data.dataset import InputSource
from cnnbench.errors import BenchmarkError, informative_line
from cnnbench.models.spec import ModelSpec
from cnnbench.optimizers.spec import AVERAGE
from cnnbench.plan import RunPlan
from cnnbench.records import checkpoints
from cnnbench.run.driver.stored_checkpoint import (
    EXAMPLES,
    GLOBAL_STEP,
    StoredCheckpoint,
    by_key,
    key_of,
    name_of,
)
from cnnbench.variable_mgr import towers
from cnnbench.variable_mgr.base import VariableMgr
from cnnbench.variable_mgr.towers import TowerVariable

_POLL_SECONDS = 0.02
_GRACE_SECONDS = 1.0
_OTHER_MODEL = "it was written for another --model or --data_name"


class RestoredState(NamedTuple):
    """The state of a training after its checkpoint was restored: steps, examples and notices.

    Attributes:
      examples: number of training examples of all steps before `global_step`.
      counts_examples: whether the checkpoint contains `examples`. If not, `examples` assumes the
        global batch of this run.
      notices: lines for the user, about state that the checkpoint does not contain.
      passed_over: number of skipped records in these steps, see
        `InputSource.skipped_records_by_shard`.
      warning: text with the first variable that contains NaN or infinity; "" if there is none.
    """

    global_step: int
    examples: int
    notices: tuple[str, ...]
    passed_over: tuple[int, ...] = ()
    warning: str = ""
    counts_examples: bool = True


@dataclass(eq=False, repr=False)
class Checkpoints:
    """Saves the variables of a run, its optimizer's slots and its loss scale, and restores them.

    Attributes:
      slots: slots of the optimizer, by canonical name; empty if the run only evaluates.
      max_to_keep: number of checkpoints that are kept; 0 keeps all.
      loss_scale: variables of the loss scale, by name; empty if it is constant.
      host: full device string of the CPU to which all values are copied before they are written;
        None if all variables are in one process. Without it, a function would write the values of
        each process in that process, and TensorFlow runs no functions after a process is lost.
      outlives_others: whether saving must work after another process has been lost.
      optimizer_name: value of --optimizer, whose slots are stored; None if the run only evaluates.
      global_batch: examples per step. The number of examples is stored, because steps before a
        restored checkpoint may have used a different batch size.
      inputs: inputs whose numbers of skipped records are stored; None if they do not follow from
        the steps.
      spec: the network, which is needed to read checkpoints of tf_cnn_benchmarks.
      averaged: whether the moving averages of a checkpoint are restored instead of the weights.
    """

    manager: VariableMgr
    slots: Mapping[str, TowerVariable] = field(default_factory=dict)
    max_to_keep: int = 5
    loss_scale: Mapping[str, tf.Variable] = field(default_factory=dict)
    host: str | None = None
    outlives_others: bool = False
    optimizer_name: str | None = None
    global_batch: int = 0
    inputs: InputSource | None = None
    spec: ModelSpec | None = None
    averaged: bool = False

    def __post_init__(self) -> None:
        self._variables = self.manager.savable_variables()
        # Added to the example count, because the steps before the checkpoint may have had another
        # batch size.
        self._examples_offset = 0
        self._passed_over: list[int] = []
        self._first_step = 0

    # These variables are created on first use, because most runs neither save nor restore a
    # checkpoint.
    @cached_property
    def _global_step(self) -> tf.Variable:
        return tf.Variable(0, dtype=tf.int64, trainable=False, name="global_step")

    @cached_property
    def _examples(self) -> tf.Variable:
        return tf.Variable(0, dtype=tf.int64, trainable=False, name="examples")

    def save(self, directory: str, global_step: int) -> str:
        """Writes the checkpoint ``directory/model.ckpt-<global_step>``; returns its path prefix."""
        self._global_step.assign(global_step)
        self._examples.assign(self._examples_offset + global_step * self.global_batch)
        if self.inputs is not None:
            steps = global_step - self._first_step
            self._passed_over = self.inputs.skipped_records_by_shard(steps)
        prefix = str(local_or_url_path(directory) / f"{checkpoints.NAME}-{global_step}")
        try:
            self._write_checkpoint(prefix, directory, global_step)
            checkpoints.delete_old_checkpoints(directory, self.max_to_keep)
        except (tf.errors.OpError, OSError) as error:
            raise BenchmarkError(
                f"--train_dir={directory}: no checkpoint can be written: {informative_line(error)}"
            ) from error
        return prefix

    def _write_checkpoint(self, prefix: str, directory: str, global_step: int) -> None:
        if not self.outlives_others:
            self._tf_checkpoint().write(prefix)
            return
        # A separate thread writes, because TensorFlow may wait for lost processes after the files
        # are written.
        checkpoint = self._tf_checkpoint()
        errors: list[tf.errors.OpError] = []

        def write() -> None:
            try:
                checkpoint.write(prefix)
            except tf.errors.OpError as error:
                errors.append(error)

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        while thread.is_alive() and not checkpoints.has_checkpoint(directory, global_step):
            thread.join(_POLL_SECONDS)
        thread.join(_GRACE_SECONDS)
        if errors and not checkpoints.has_checkpoint(directory, global_step):
            raise errors[0]

    def restore(self, path: str) -> RestoredState:
        """Restores all copies of every variable, and the optimizer's slots if they were saved.

        A checkpoint contains one copy of each variable, that of tower 0. Therefore, towers that
        train independently continue with equal weights.

        Args:
          path: prefix of a checkpoint, as `files.find_latest_checkpoint` returns it.

        Raises:
          BenchmarkError: the checkpoint is unreadable, or it does not fit the variables of this
            model.
          FlagError: a checkpoint of tf_cnn_benchmarks does not fit the variables of this model.
        """
        stored = StoredCheckpoint(path, _OTHER_MODEL, self.spec)
        model = {self._source_key(name): v.primary for name, v in self._variables.items()}
        if self.averaged and not stored.has_keys(model):
            missing = "has no moving averages: it was written without --ema_decay"
            raise BenchmarkError(f"{path} {missing}")
        stored.check_shapes({**model, GLOBAL_STEP: self._global_step})
        averages = {n: slot for n, slot in self.slots.items() if n.endswith(f"/{AVERAGE}")}
        others = {n: slot for n, slot in self.slots.items() if n not in averages}
        before = stored.read_optimizer_name() if self.optimizer_name else None
        nonfinite = stored.assign_stored_values({GLOBAL_STEP: self._global_step, **model})
        has_slots = before == self.optimizer_name and stored.assign_if_complete(
            _slots_by_key(others)
        )
        has_averages = stored.assign_if_complete(_slots_by_key(averages))
        has_scale = stored.assign_if_complete(by_key("loss_scale", self.loss_scale))
        copied = [*others.values()] if has_slots else []
        copied += averages.values() if has_averages else ()
        self.manager.after_restore(copied)
        if not has_averages:
            reset_averages(self.manager, self.slots)
        self._first_step = global_step = int(self._global_step.numpy())
        by_this_batch = global_step * self.global_batch
        # Checkpoints of tf_cnn_benchmarks do not contain the number of examples.
        counts_examples = stored.has_keys([EXAMPLES])
        examples = int(stored.read_tensor(EXAMPLES)) if counts_examples else by_this_batch
        self._examples_offset = examples - by_this_batch
        notices = list(self._optimizer_notices(path, stored, before, has_slots))
        if not counts_examples and self.optimizer_name:
            notices.append(
                f"{path} does not contain the number of examples it was trained on: the learning "
                f"rate assumes {self.global_batch} examples in each of its {global_step} steps"
            )
        if not has_averages:
            notices.append(f"{path} has no moving averages; they start from its weights")
        if not has_scale:
            notices.append(f"{path} has no loss scale; the loss scale begins at --fp16_loss_scale")
        warning = ""
        if nonfinite:
            first = name_of(nonfinite)
            warning = f"{path} has values that are not finite, first in {first}"
        skipped = stored.read_skipped_records()
        return RestoredState(
            global_step, examples, tuple(notices), skipped, warning, counts_examples
        )

    def _optimizer_notices(
        self, path: str, stored: StoredCheckpoint, before: str | None, has_slots: bool
    ) -> Iterator[str]:
        """Yields a notice if a checkpoint does not contain the state of this run's optimizer.

        `before` is the optimizer with which the checkpoint was written.
        """
        if stored.is_old:
            yield f"{path} is from tf_cnn_benchmarks: the optimizer's state is not restored"
        elif before != self.optimizer_name:
            starts = f"the state of {self.optimizer_name} starts afresh"
            yield f"{path} was written with --optimizer={before}; {starts}"
        elif not has_slots:
            yield f"{path} lacks some of the state of {before}, which starts afresh"

    def _source_key(self, name: str) -> str:
        """Returns the checkpoint key of the value from which variable `name` is restored."""
        if self.averaged and self._variables[name].primary.trainable:
            return key_of("slots", f"{name}/{AVERAGE}")
        return key_of("model", name)

    def _tf_checkpoint(self) -> tf.train.Checkpoint:
        """Creates the tf.train.Checkpoint with all values to save, by their names in the files."""
        parts = {
            "model": {n: self._host_copy(v.primary) for n, v in self._variables.items()},
            "global_step": self._global_step,
            "examples": self._examples,
        }
        if self.slots:
            parts["slots"] = {n: self._host_copy(s.primary) for n, s in self.slots.items()}
        if self.loss_scale:
            parts["loss_scale"] = self.loss_scale
        with tf.device(self.host or "CPU:0"):
            if self.optimizer_name:
                parts["optimizer"] = tf.Variable(self.optimizer_name, trainable=False)
            if any(self._passed_over):
                parts["passed_over"] = tf.Variable(self._passed_over, trainable=False)
        return tf.train.Checkpoint(**parts)

    def _host_copy(self, variable: tf.Variable) -> tf.Variable:
        """Returns the variable, or a copy on the CPU of the process that writes the checkpoint."""
        if self.host in (None, variable.device):
            return variable
        value = towers.read(variable)
        with tf.device(self.host):
            return tf.Variable(tf.identity(value), trainable=False)


def _slots_by_key(slots: Mapping[str, TowerVariable]) -> dict[str, tf.Variable]:
    return by_key("slots", {name: slot.primary for name, slot in slots.items()})


def make_checkpoints(
    plan: RunPlan,
    job: Job,
    manager: VariableMgr,
    slots: Mapping[str, TowerVariable],
    loss_scale: Mapping[str, tf.Variable],
    inputs: InputSource | None = None,
) -> Checkpoints:
    """Creates the object that saves and restores the checkpoints of a run.

    Args:
      slots, loss_scale: see `Checkpoints`.
      inputs: input of the training; None if the run does not train.
    """
    return Checkpoints(
        manager,
        slots,
        plan.params.max_ckpts_to_keep,
        loss_scale,
        host=job.cpu_device if job.in_cluster else None,
        outlives_others=plan.place.asynchronous,
        optimizer_name=plan.numerics.optimizer_spec.name if plan.work.trains else None,
        global_batch=plan.length.global_batch,
        # Skipped records are stored only if this process reads all data, in synchronous steps.
        inputs=None if plan.place.asynchronous or manager.workers is not None else inputs,
        spec=plan.network.spec,
        averaged=plan.params.ema_decay > 0 and not plan.work.trains,
    )


def select_moving_averages(slots: Mapping[str, TowerVariable]) -> dict[str, TowerVariable]:
    """Selects the moving averages from the optimizer's slots, by the names of their variables.

    `slots` contains all slots by canonical name.
    """
    end = f"/{AVERAGE}"
    return {n.removesuffix(end): slot for n, slot in slots.items() if n.endswith(end)}


def reset_averages(manager: VariableMgr, slots: Mapping[str, TowerVariable]) -> None:
    """Sets the moving averages in `slots` to the current values of their variables."""
    for name, average in select_moving_averages(slots).items():
        for copy, variable in zip(average.copies, manager.updated(name).copies, strict=True):
            with tf.device(copy.device):
                copy.assign(towers.read(variable), read_value=False)
