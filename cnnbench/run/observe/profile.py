"""The profile of one step, taken by TensorFlow's profiler."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import tensorflow as tf

from cnnbench.base.scratch import Scratch
from cnnbench.errors import BenchmarkError
from cnnbench.run.observe.xplane import XPlane, read
from cnnbench.run.runtime.native import without_info_lines

# Every operation of the host, no Python functions, kernels of GPUs.
_OPTIONS = {"host_tracer_level": 3, "python_tracer_level": 0, "device_tracer_level": 1}


@contextmanager
def profiling(
    folder: str | None, use: Callable[[tuple[XPlane, ...]], None] | None
) -> Iterator[None]:
    """Profiles the block; copies the profile to `folder`, if any, for `tensorboard --logdir`."""
    with Scratch("profile") as own:
        scratch = own.path / "profile"
        with without_info_lines():
            options = tf.profiler.experimental.ProfilerOptions(**_OPTIONS)
            tf.profiler.experimental.start(os.fspath(scratch), options)
        try:
            yield
        except BaseException:
            tf.profiler.experimental.stop(save=False)
            raise
        with without_info_lines():
            tf.profiler.experimental.stop()
        written = sorted(scratch.glob("plugins/profile/*/*.xplane.pb"))
        if not written:
            raise BenchmarkError("TensorFlow's profiler has left no profile")
        if folder is not None:
            shutil.copytree(scratch, folder, dirs_exist_ok=True)
        if use is not None:
            use(tuple(plane for path in written for plane in read(path.read_bytes())))
