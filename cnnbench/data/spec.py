"""Specification of an input as one frozen value; no flags, no TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cnnbench.data.dataset import Dataset
from cnnbench.models.elements import Element, resolve

Preprocess = Callable[[Mapping[str, Any], Any], Mapping[str, Any]]
"""From an example of the data set and a seed to the delivered elements; see `Model.preprocess`."""

PREPROCESSORS = ("default", "official_models_imagenet")
RESIZE_METHODS = ("nearest", "bilinear", "bicubic", "area", "round_robin", "crop")


@dataclass(frozen=True, kw_only=True)
class InputSpec:
    """One input of the benchmark.

    Fields from ``resize_method`` on carry the name, meaning and default of the flag of that name,
    so that `from_flags` can copy them.

    Attributes:
      data_dir: directory of the files; None means synthetic data.
      subset: "train" (shuffled, repeated, optionally distorted) or "validation" (an exact pass in a
        fixed order, repeated; padding of the last batch has weight 0).
      batch_per_device: examples per tower and step.
      image_size: height and width of the delivered images, in pixels; 0 without images.
      num_classes: labels must be in [0, num_classes).
      examples: parts of an example of `dataset`, sizes resolved; by default all of them.
      elements: delivered parts, sizes resolved; by default all of them.
      preprocess: makes the elements from an example; None where they are the same.
      dtype: dtype of real features: "float32", "float16" or "bfloat16". Preprocessing is float32.
      num_shards: processes that share the data; each reads its own part.
      shard_index: the part to read. For synthetic data: which rows of the global batch of all
        shards are made.
      shard_files: whether training shards are whole files, which may differ in size, or equal parts
        of all records.
      host: full string of the CPU that reads and prepares, or "CPU:0" of this process.
      shuffle_buffer: number of records among which a training record is drawn.
    """

    dataset: Dataset
    subset: str
    batch_per_device: int
    num_devices: int
    image_size: int = 0
    data_dir: str | None = None
    channels: int = 3
    num_classes: int = 0
    examples: tuple[Element, ...] = ()
    elements: tuple[Element, ...] = ()
    preprocess: Preprocess | None = None
    seed: int = 1234
    dtype: str = "float32"
    num_shards: int = 1
    shard_index: int = 0
    shard_files: bool = False
    host: str = "CPU:0"
    shuffle_buffer: int = 10_000

    resize_method: str = "bilinear"
    input_preprocessor: str = "default"
    distortions: bool = False
    distort_color_in_yiq: bool = True
    fuse_decode_and_crop: bool = True
    jpeg_fancy_upscaling: bool = True
    ml_perf: bool = False
    datasets_use_prefetch: bool = True
    datasets_prefetch_buffer_size: int = 1
    multi_device_iterator_max_buffer_size: int = 1
    datasets_num_private_threads: int | None = None
    datasets_use_caching: bool = False
    datasets_repeat_cached_sample: bool = False
    datasets_parallel_interleave_cycle_length: int | None = None
    datasets_parallel_interleave_prefetch: int | None = None
    datasets_sloppy_parallel_interleave: bool = False
    on_bad_record: str = "fail"

    def __post_init__(self) -> None:
        """Computes derived fields."""
        if self.num_classes == 0:
            object.__setattr__(self, "num_classes", self.dataset.num_classes)
        if not self.examples:
            examples = resolve(self.dataset.elements, self, self.num_classes)
            object.__setattr__(self, "examples", examples)
        if not self.elements:
            object.__setattr__(self, "elements", self.examples)
        if self.official:
            settled = {"resize_method": "bilinear", "distortions": False, "ml_perf": False}
            for name, value in settled.items():
                object.__setattr__(self, name, value)

    @property
    def training(self) -> bool:
        """Whether records are shuffled, repeated endlessly and distorted."""
        return self.subset == "train"

    @property
    def official(self) -> bool:
        """Whether images are prepared as in TensorFlow's official models."""
        return self.input_preprocessor == "official_models_imagenet"

    @property
    def global_batch(self) -> int:
        """Examples per step over all towers."""
        return self.batch_per_device * self.num_devices

    def dtype_of(self, element: Element) -> str:
        """Dtype of an element in batches."""
        by_precision = element.role == "feature" and element.dtype == "float32"
        return self.dtype if by_precision else element.dtype

    @classmethod
    def from_flags(cls, flags: object, **fields: Any) -> InputSpec:
        """A spec with ``fields``, and other attributes from the data flags that ``flags`` has."""
        names = [f.name for f in dataclasses.fields(cls)]
        copied = names[names.index("resize_method") :]
        taken = {n: getattr(flags, n) for n in copied if n not in fields and hasattr(flags, n)}
        return cls(**taken, **fields)
