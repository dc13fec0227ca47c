"""Accuracy of the current weights on the validation subset."""

from __future__ import annotations

import time

import tensorflow as tf

from cnnbench.data.source import InputSource, TowerBatch
from cnnbench.driver.console import Console
from cnnbench.models.graph import DataFormat, forward
from cnnbench.models.model import Model
from cnnbench.models.spec import ModelSpec, VariableSpec
from cnnbench.records.run import Evaluation
from cnnbench.step.batch_norm_stats import share_moving_averages
from cnnbench.step.tower import top_hits
from cnnbench.variable_mgr.base import VariableMgr


class Evaluator:
    """Traces the evaluation step once and runs it over a number of batches.

    Args:
      model, spec: the network and its declaration.
      manager: holds the weights; tower t evaluates its own copy.
      inputs: validation batches with weights (0 for padding).
      data_format: "NHWC" or "NCHW".
      compute_dtype: "float32", "bfloat16" or "float16".
      display_every: global batches between two lines of output.
    """

    def __init__(
        self,
        model: Model,
        spec: ModelSpec,
        manager: VariableMgr,
        inputs: InputSource,
        data_format: DataFormat,
        compute_dtype: str,
        display_every: int,
    ) -> None:
        self._model = model
        self._spec = spec
        self._manager = manager
        self._inputs = inputs
        self._data_format = data_format
        self._compute_dtype = tf.as_dtype(compute_dtype)
        self._display_every = display_every
        self._devices = manager.get_devices()
        # Traced here, so that the first rate printed is not mostly tracing.
        traced = tf.function(self._step, autograph=False)
        self._function = traced.get_concrete_function(*inputs.signature)

    def run(self, batches: int, global_step: int, console: Console) -> Evaluation:
        """Evaluates `batches` global batches and prints rates and accuracies.

        Args:
          batches: how many; past the end of the data set it starts over.
          global_step: of the weights, for the result.
          console: gets a line every `display_every` batches and one at the end.

        Returns:
          Accuracies and mean loss (without the L2 loss) over examples; padding does
          not count.
        """
        share_moving_averages(self._manager)
        self._inputs.restart()
        totals = [0.0, 0.0, 0.0, 0.0]
        start = window = time.perf_counter()
        for batch in range(1, batches + 1):
            sums = self._function(*self._inputs.next()).numpy().tolist()
            totals = [total + value for total, value in zip(totals, sums, strict=True)]
            if batch % self._display_every == 0:
                now = time.perf_counter()
                images = self._inputs.spec.global_batch * self._display_every
                console.evaluation_row(batch, images / (now - window))
                window = now
        elapsed = time.perf_counter() - start
        # Reading ahead would take time from the training that goes on.
        self._inputs.close()
        top_1, top_5, loss, count = totals
        console.evaluation_result(top_1 / count, top_5 / count, round(count))
        return Evaluation(
            global_step=global_step,
            top_1=top_1 / count,
            top_5=top_5 / count,
            loss=loss / count,
            examples=round(count),
            images_per_sec=count / elapsed,
        )

    def _step(self, *batches: TowerBatch) -> tf.Tensor:
        """Sums over all towers: [top-1 hits, top-5 hits, loss, examples], float32 [4]."""
        sums = []
        for tower, device in enumerate(self._devices):
            with tf.device(device), tf.name_scope(f"evaluation_{tower}"):
                sums.append(self._tower(tower, self._inputs.of_tower(tower, batches)))
        with tf.device(self._devices[0]):
            return tf.add_n(sums)

    def _tower(self, tower: int, batch: TowerBatch) -> tf.Tensor:
        # Towers that train independently are different networks: tower 0's is the one that
        # checkpoints hold, and the one that is evaluated.
        source = tower if self._manager.replicas_in_sync else 0

        def read(spec: VariableSpec, dtype: tf.DType) -> tf.Tensor:
            return self._manager.read(source, spec.name, dtype)

        logits = forward(
            self._model,
            self._spec.num_classes,
            batch.images,
            read,
            training=False,
            data_format=self._data_format,
            compute_dtype=self._compute_dtype,
        ).logits
        top_1, top_5 = top_hits(logits, batch.labels)
        losses = self._model.loss(logits, batch.labels)
        columns = tf.stack([top_1, top_5, losses, tf.ones_like(top_1)])
        return tf.reduce_sum(columns if batch.weights is None else columns * batch.weights, axis=1)
