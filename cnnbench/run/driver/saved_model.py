"""Exports network and weights (--export_dir) as a SavedModel that can be used without cnnbench."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterable, Mapping

import tensorflow as tf

from cnnbench.base.interrupts import delaying_interrupts
from cnnbench.base.job import Job
from cnnbench.base.locks import TemporaryFolder
from cnnbench.base.terminal import MessageWriter
from cnnbench.base.urls import UrlPath
from cnnbench.errors import BenchmarkError, FlagError, informative_line
from cnnbench.models.elements import elements_of_role, group_values, resolve_sizes
from cnnbench.models.graph import GraphNetwork
from cnnbench.models.spec import VariableSpec
from cnnbench.plan import RunPlan
from cnnbench.records.files import collecting_write_errors, prepare_export
from cnnbench.variable_mgr import towers
from cnnbench.variable_mgr.base import VariableMgr
from cnnbench.variable_mgr.towers import TowerVariable

SIGNATURE = "serving_default"


class SavedModelExporter:
    """Traces the network once, and writes it as a SavedModel with the current weights.

    The arguments of the signature are the features of the model by name, prepared as for
    evaluations, for any number of examples. The results of a classifier are "logits" and
    "probabilities". Other models have one result "outputs", or results with names of their own.

    Args:
      folder: folder of the SavedModel, or a URL.
      manager: contains the weights. Copy 0 is exported, which is also the copy in checkpoints.
      cpu_device: device of the exported copies.
      averages: moving averages by the name of their variable. They are exported instead of the
        variables.
    """

    def __init__(
        self,
        folder: str,
        plan: RunPlan,
        manager: VariableMgr,
        cpu_device: str,
        averages: Mapping[str, TowerVariable],
    ) -> None:
        self.folder = folder
        self._model = model = plan.network.model
        self._num_classes = plan.network.spec.num_classes
        elements = resolve_sizes(model.elements, model, self._num_classes)
        self._elements = elements_of_role(elements, "feature")
        self._compute_dtype = plan.numerics.dtype
        variables = manager.savable_variables()
        self._sources = {**variables, **averages}
        self._module = tf.Module()
        with tf.device(cpu_device):
            self._module.weights = {
                name: tf.Variable(
                    tf.zeros(source.shape, source.dtype),
                    trainable=variables[name].primary.trainable,
                    name=name,
                )
                for name, source in self._sources.items()
            }
        signature = {}
        for element in self._elements:
            dtype, shape = "float32" if element.is_real else element.dtype, [None, *element.sizes]
            signature[element.name] = tf.TensorSpec(shape, dtype, name=element.name)
        try:
            traced = tf.function(self._serve, autograph=False)
            self._serving = traced.get_concrete_function(**signature)
        except (TypeError, ValueError) as error:
            raise BenchmarkError(
                f"--model={model.name} cannot be exported with a variable number of examples: "
                f"{informative_line(error)}"
            ) from error

    def write(self) -> None:
        """Replaces the SavedModel in `folder` by a new one with the current weights.

        Raises:
          BenchmarkError: the SavedModel cannot be written. An earlier SavedModel is unchanged, or
            the message names its new path. Behind a URL, it may be lost.
        """
        for name, source in self._sources.items():
            self._module.weights[name].assign(towers.read(source.primary))
        try:
            target = prepare_export(self.folder)
            signatures = {SIGNATURE: self._serving}
            if isinstance(target, UrlPath):
                tf.saved_model.save(self._module, str(target), signatures=signatures)
                return
            # The scratch folder is removed after a kill, so the old model is moved to a place
            # outside of it.
            old = target.with_name(f".{target.name}.{secrets.token_hex(6)}.old")
            with TemporaryFolder("cnnbench-export-", target.parent) as scratch:
                new = scratch.path / "model"
                tf.saved_model.save(self._module, str(new), signatures=signatures)
                prepare_export(self.folder)
                with contextlib.suppress(FileNotFoundError):
                    os.rename(target, old)
                try:
                    os.rename(new, target)
                except OSError:
                    with contextlib.suppress(FileNotFoundError):
                        # If this rename fails, too, the error names both paths, so that the user
                        # finds the old model.
                        os.rename(old, target)
                    raise
            shutil.rmtree(old, ignore_errors=True)
        except FlagError as error:
            raise BenchmarkError(str(error)) from error
        except (OSError, tf.errors.OpError) as error:
            raise BenchmarkError(
                f"--export_dir={self.folder}: cannot be written: {informative_line(error)}"
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
            # The program that will read the SavedModel may compute with oneDNN.
            avoids_doubtful=True,
        )
        outputs = network.forward(group_values(self._elements, "feature", features))
        if isinstance(outputs, Mapping):
            return dict(outputs)
        if self._model.has_softmax_loss():
            return {"logits": outputs, "probabilities": tf.nn.softmax(outputs)}
        return {"outputs": outputs}


def make_exporters(
    plan: RunPlan, job: Job, manager: VariableMgr, averages: Mapping[str, TowerVariable]
) -> tuple[SavedModelExporter, ...]:
    """Creates the exporters of a run's weights: one if --export_dir is given, otherwise none.

    `manager` and `averages` are the arguments of `SavedModelExporter`.
    """
    folder = plan.params.export_dir
    if folder is None:
        return ()
    return (SavedModelExporter(folder, plan, manager, job.cpu_device, averages),)


def export_weights(exporters: Iterable[SavedModelExporter], messages: MessageWriter) -> None:
    """Exports the current weights. A failure is reported when the run ends."""
    for exporter in exporters:
        with collecting_write_errors("export_dir", exporter.folder):
            with delaying_interrupts():
                exporter.write()
            messages.notice(f"SavedModel written to {exporter.folder}")
