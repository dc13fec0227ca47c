"""Checkpoints that every mode and tower count can read.

A variable is stored once under its canonical name, whatever number of copies
the manager keeps, and so are the optimizer's slots and an automatic loss scale; files
are called `model.ckpt-<global step>`. Format and bookkeeping are tf.train's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from cnnbench.errors import BenchmarkError, first_line
from cnnbench.variable_mgr.base import VariableMgr
from cnnbench.variable_mgr.tower_variable import TowerVariable

NAME = "model.ckpt"


class Restored(NamedTuple):
    """Result of restoring a checkpoint.

    Attributes:
      global_step: at which the checkpoint was saved.
      notices: lines for the user.
    """

    global_step: int
    notices: tuple[str, ...]


class Checkpoints:
    """Saves and restores the variables of one manager.

    Args:
      manager: whose variables to store.
      slots: the optimizer's slots by canonical name; empty when only evaluating.
      max_to_keep: older files are deleted; 0 keeps all.
      loss_scale: the state of the loss scale by name; empty where it has none.
    """

    def __init__(
        self,
        manager: VariableMgr,
        slots: Mapping[str, TowerVariable] | None = None,
        max_to_keep: int = 5,
        loss_scale: Mapping[str, tf.Variable] | None = None,
    ) -> None:
        self._variables = manager.savable_variables()
        self._in_sync = manager.replicas_in_sync or len(manager.get_devices()) == 1
        self._slots = dict(slots or {})
        self._max_to_keep = max_to_keep
        self._loss_scale = dict(loss_scale or {})
        self._global_step = tf.Variable(0, dtype=tf.int64, trainable=False, name="global_step")
        self._managers: dict[str, tf.train.CheckpointManager] = {}

    def save(self, directory: str, global_step: int) -> str:
        """Writes `directory`/model.ckpt-<global_step>; returns its path prefix.

        Raises:
          BenchmarkError: it cannot be written.
        """
        self._global_step.assign(global_step)
        if directory not in self._managers:
            self._managers[directory] = tf.train.CheckpointManager(
                self._checkpoint(with_slots=True, with_loss_scale=True),
                directory,
                max_to_keep=self._max_to_keep or None,
                checkpoint_name=NAME,
            )
        try:
            return str(self._managers[directory].save(checkpoint_number=global_step))
        except (tf.errors.OpError, OSError) as error:
            raise BenchmarkError(
                f"no checkpoint could be written to {directory}: {first_line(error)}"
            ) from error

    def restore(self, path: str) -> Restored:
        """Restores all copies of every variable, and the slots where they were saved.

        A checkpoint holds one copy of each variable, tower 0's. Towers that train
        independently of each other therefore go on from equal weights.

        Args:
          path: prefix of a checkpoint, as `latest` returns it.

        Returns:
          The global step it was saved at, and notices for the user.

        Raises:
          BenchmarkError: unreadable, or it lacks variables of this model.
        """
        stored = _stored_keys(path)
        missing = [n for n in self._variables if _key("model", n) not in stored]
        if missing:
            raise BenchmarkError(
                f"checkpoint {path} lacks {len(missing)} of {len(self._variables)} variables "
                f"(first: {missing[0]}); it was written for another --model or --data_name"
            )
        has_scale = all(_key("loss_scale", name) in stored for name in self._loss_scale)
        has_slots = all(_key("slots", name) in stored for name in self._slots)
        try:
            stored_part = self._checkpoint(with_slots=has_slots, with_loss_scale=has_scale)
            stored_part.read(path).expect_partial()
        except (tf.errors.OpError, ValueError) as error:
            reason = first_line(error)
            raise BenchmarkError(f"checkpoint {path} cannot be restored: {reason}") from error
        facades = [*self._variables.values(), *(self._slots.values() if has_slots else ())]
        for facade in facades:
            facade.broadcast()
        notices = []
        if not has_slots:
            notices.append(f"{path} has no state of this optimizer, which starts afresh")
        if not has_scale:
            notices.append(f"{path} has no loss scale; --fp16_loss_scale is where it starts")
        if not self._in_sync:
            notices.append(f"{path} holds the weights of one tower; all towers start from them")
        return Restored(int(self._global_step.numpy()), tuple(notices))

    def _checkpoint(self, *, with_slots: bool, with_loss_scale: bool) -> tf.train.Checkpoint:
        parts = {
            "model": {name: facade.primary for name, facade in self._variables.items()},
            "global_step": self._global_step,
        }
        if with_slots and self._slots:
            parts["slots"] = {name: facade.primary for name, facade in self._slots.items()}
        if with_loss_scale and self._loss_scale:
            parts["loss_scale"] = self._loss_scale
        return tf.train.Checkpoint(**parts)


def latest(path: str) -> str | None:
    """Prefix of the checkpoint at `path`, or None if there is none.

    Args:
      path: a directory, meaning its newest checkpoint, or one checkpoint's prefix
        (`…/model.ckpt-120`).
    """
    if re.search(r"ckpt-\d+$", path):
        return path if Path(f"{path}.index").exists() else None
    found = tf.train.latest_checkpoint(path)
    return None if found is None else str(found)


def _stored_keys(path: str) -> frozenset[str]:
    try:
        return frozenset(name for name, _ in tf.train.list_variables(path))
    except (tf.errors.OpError, ValueError) as error:
        raise BenchmarkError(f"checkpoint {path} cannot be read: {first_line(error)}") from error


def _key(part: str, name: str) -> str:
    # tf.train escapes '/' inside the name of a child as '.S'.
    return f"{part}/{name.replace('.', '..').replace('/', '.S')}/.ATTRIBUTES/VARIABLE_VALUE"
