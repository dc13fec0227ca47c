"""--export_dir: network and weights as a SavedModel that does not need cnnbench."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Mapping

import tensorflow as tf

from cnnbench.base.lock import Scratch
from cnnbench.base.urls import UrlPath
from cnnbench.errors import BenchmarkError, FlagError, first_line
from cnnbench.models.elements import grouped, of_role, resolve
from cnnbench.models.graph import GraphNetwork
from cnnbench.models.model import Model
from cnnbench.models.spec import ModelSpec, VariableSpec
from cnnbench.records.files import resolve_saved_model
from cnnbench.variable_mgr import tower_variable
from cnnbench.variable_mgr.base import VariableMgr

SIGNATURE = "serving_default"


class Exporter:
    """Traces the network once, with variables of its own; writes it on request.

    The signature takes each feature of the model under its name, as evaluations prepare it,
    for any number of examples. It returns what the model returns: "logits" and
    "probabilities" of a classifier, the names of a mapping, else "outputs".

    Args:
      manager: holds the weights; copy 0 is exported, as checkpoints hold it.
      compute_dtype: dtype in which evaluations compute: "float32", "bfloat16" or "float16".
      cpu_device: holds the copies to export.
    """

    def __init__(
        self,
        model: Model,
        spec: ModelSpec,
        manager: VariableMgr,
        compute_dtype: str,
        cpu_device: str,
    ) -> None:
        self._model = model
        self._num_classes = spec.num_classes
        self._elements = of_role(resolve(model.elements, model, spec.num_classes), "feature")
        self._compute_dtype = compute_dtype
        self._sources = manager.savable_variables()
        self._module = tf.Module()
        with tf.device(cpu_device):
            self._module.weights = {
                name: tf.Variable(
                    tf.zeros(source.shape, source.dtype),
                    trainable=source.primary.trainable,
                    name=name,
                )
                for name, source in self._sources.items()
            }
        signature = {
            one.name: tf.TensorSpec(
                [None, *one.sizes], "float32" if one.is_real else one.dtype, name=one.name
            )
            for one in self._elements
        }
        try:
            traced = tf.function(self._serve, autograph=False)
            self._serving = traced.get_concrete_function(**signature)
        except (TypeError, ValueError) as error:
            raise BenchmarkError(
                f"--model={model.name} cannot be exported for any number of examples: "
                f"{first_line(error)}"
            ) from error

    def write(self, directory: str) -> None:
        """Replaces the SavedModel in `directory` by one with the current weights.

        Raises:
          BenchmarkError: it cannot be written; an earlier SavedModel is unchanged, except
            behind a URL, or else where the message says.
        """
        for name, source in self._sources.items():
            self._module.weights[name].assign(tower_variable.read(source.primary))
        try:
            target = resolve_saved_model(directory)
            signatures = {SIGNATURE: self._serving}
            if isinstance(target, UrlPath):
                tf.saved_model.save(self._module, str(target), signatures=signatures)
                return
            # Not in the folder of the new one, which is removed after a kill.
            old = target.with_name(f".{target.name}.{secrets.token_hex(6)}.old")
            with Scratch("cnnbench-export-", target.parent) as scratch:
                new = scratch.path / "model"
                tf.saved_model.save(self._module, str(new), signatures=signatures)
                resolve_saved_model(directory)
                with contextlib.suppress(FileNotFoundError):
                    os.rename(target, old)
                try:
                    os.rename(new, target)
                except OSError:
                    with contextlib.suppress(FileNotFoundError):
                        os.rename(old, target)  # if that fails too, its error has both paths
                    raise
            shutil.rmtree(old, ignore_errors=True)
        except FlagError as error:
            raise BenchmarkError(str(error)) from error
        except (OSError, tf.errors.OpError) as error:
            raise BenchmarkError(
                f"--export_dir={directory}: cannot be written: {first_line(error)}"
            ) from error

    def _serve(self, **features: tf.Tensor) -> dict[str, tf.Tensor]:
        def read(spec: VariableSpec, dtype: tf.DType) -> tf.Tensor:
            return tf.cast(self._module.weights[spec.name].read_value(), dtype)

        network = GraphNetwork(
            self._model,
            self._num_classes,
            read,
            training=False,
            compute_dtype=self._compute_dtype,
        )
        outputs = network.forward(grouped(self._elements, "feature", features))
        if isinstance(outputs, Mapping):
            return dict(outputs)
        if self._model.has_softmax_loss():
            return {"logits": outputs, "probabilities": tf.nn.softmax(outputs)}
        return {"outputs": outputs}
