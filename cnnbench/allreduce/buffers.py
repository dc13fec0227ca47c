"""Where the tensors of a reduction come from and where the sums go.

Both are staging areas, one per device, not variables. An area hands out all its tensors
in one operation and takes all sums in one, by reference. Reading and assigning a variable
per tensor would cost as much as reducing small tensors does (a thousand tensors of
4 KiB on four devices: 21 ms against 1.2 ms, and minutes to build), and so hide what is to
be measured. Both operations have side effects, so that TensorFlow's graph optimiser can
neither drop a sum that nobody reads nor merge two reductions of the same tensors.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TypeAlias

import tensorflow as tf

from cnnbench.allreduce.data import Array, DataSet

# [device][index]
DeviceTensors: TypeAlias = "list[list[tf.Tensor]]"

_numbers = itertools.count()


class Buffers:
    """Equal tensors on several devices, and room for as many sums on each.

    Args:
      devices: full device strings.
      shapes: of the tensors of each device.
      dtype: name of their dtype.
    """

    def __init__(
        self, devices: Sequence[str], shapes: Sequence[tuple[int, ...]], dtype: str
    ) -> None:
        self.devices = tuple(devices)
        self.shapes = tuple(shapes)
        self.dtype = tf.as_dtype(dtype)
        sizes = [math.prod(shape) for shape in self.shapes]
        self._begins = tuple(itertools.accumulate(sizes, initial=0))[:-1]
        number = next(_numbers)
        self._inputs = [f"allreduce-{number}-in-{i}" for i in range(len(self.devices))]
        self._sums = [f"allreduce-{number}-out-{i}" for i in range(len(self.devices))]

    def load(self, data: DataSet) -> None:
        """Puts the values of a data set into the tensors of every device."""
        self._clear(self._inputs)
        for number, device in enumerate(self.devices):
            with tf.device(device):
                values = [
                    tf.constant(data.fill(number, begin, shape))
                    for begin, shape in zip(self._begins, self.shapes, strict=True)
                ]
                tf.raw_ops.Stage(values=values, shared_name=self._inputs[number])

    def read(self) -> DeviceTensors:
        """The tensors of every device, inside a traced function.

        The sums that a device had before are freed first, as gradients that have been
        applied are, so that what follows may use their memory.
        """
        tensors = []
        for device, name, sums in zip(self.devices, self._inputs, self._sums, strict=True):
            with tf.device(device):
                clear = tf.raw_ops.StageClear(dtypes=self._dtypes, shared_name=sums)
                with tf.control_dependencies([clear]):
                    own = tf.raw_ops.StagePeek(index=0, dtypes=self._dtypes, shared_name=name)
                for tensor, shape in zip(own, self.shapes, strict=True):
                    tensor.set_shape(shape)
                tensors.append(list(own))
        return tensors

    def write(self, sums: DeviceTensors, read: DeviceTensors) -> list[tf.Tensor]:
        """Keeps the sums of every device, inside a traced function.

        Args:
          sums: for every device.
          read: what `read` gave; a sum of nothing in it still comes after it.

        Returns:
          A scalar on each device that can be read when the device has its sums.
        """
        tokens = []
        for device, name, own, before in zip(self.devices, self._sums, sums, read, strict=True):
            with tf.device(device):
                with tf.control_dependencies([before[0].op]):
                    stage = tf.raw_ops.Stage(values=own, shared_name=name)
                with tf.control_dependencies([stage]):
                    # A GPU's operations are begun, not done, when what depends on them
                    # begins. One that computes from a sum comes after it on the GPU.
                    last = tf.reshape(own[-1], [-1])[:1]
                    tokens.append(tf.reduce_sum(tf.cast(last, tf.float32)))
        return tokens

    def count_wrong(self, data: DataSet, added_in: str, cast: bool) -> int:
        """How many elements of the sums that were kept last are wrong, over all devices."""
        wrong = 0
        for device, name in zip(self.devices, self._sums, strict=True):
            with tf.device(device):
                if int(tf.raw_ops.StageSize(dtypes=self._dtypes, shared_name=name)) != 1:
                    wrong += sum(math.prod(shape) for shape in self.shapes)
                    continue
                own = tf.raw_ops.StagePeek(index=0, dtypes=self._dtypes, shared_name=name)
            for tensor, begin, shape in zip(own, self._begins, self.shapes, strict=True):
                result: Array = tensor.numpy()
                if result.shape != shape:
                    wrong += math.prod(shape)
                else:
                    wrong += data.count_wrong(result, begin, added_in, cast)
        return wrong

    @property
    def elements(self) -> int:
        """Elements on all devices together."""
        return len(self.devices) * sum(math.prod(shape) for shape in self.shapes)

    def clear_sums(self) -> None:
        """Forgets the sums, so that none of them can be taken for a later reduction's."""
        self._clear(self._sums)

    def close(self) -> None:
        """Frees the memory."""
        self._clear(self._inputs)
        self._clear(self._sums)

    @property
    def _dtypes(self) -> list[tf.DType]:
        return [self.dtype] * len(self.shapes)

    def _clear(self, names: Sequence[str]) -> None:
        for device, name in zip(self.devices, names, strict=True):
            with tf.device(device):
                tf.raw_ops.StageClear(dtypes=self._dtypes, shared_name=name)
