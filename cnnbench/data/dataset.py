"""Defines the base class of data sets (`Dataset`), the specification of an input (`InputSpec`), and
the base class of inputs (`InputSource`).
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from cnnbench.arrays import Tensor, Tensors
from cnnbench.base import interfaces, plugins
from cnnbench.base.registry import SpecRegistry
from cnnbench.base.urls import local_or_url_path
from cnnbench.data.folder import Findings, converting_read_errors
from cnnbench.errors import DataError, FlagError, UsageError
from cnnbench.flags.groups.data import DataParams
from cnnbench.models import registry
from cnnbench.models.elements import IMAGE_CLASSIFICATION, Element, group_values, resolve_sizes
from cnnbench.records.input import SkippedRecords

# Data sets: their names, classes and files, and how flags select a data set (without TensorFlow)

SUBSETS = ("train", "validation")


def _pipeline_fault(value: Any, arguments: Sequence[Any]) -> str:
    del arguments
    # The class `Pipeline` is not imported here, because that would import TensorFlow.
    fits = hasattr(value, "tower_batches")
    return "" if fits else f"a cnnbench.data.pipeline.Pipeline, not {interfaces.value_text(value)}"


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Description of a data set: its classes and examples, and functions that find, read and check
    its files.

    Attributes:
      name: value of ``--data_name``; models are registered under it, too.
      num_classes: number of logits. For ImageNet it is 1001: 1000 classes, and label 0 for the
        background. For CIFAR-10 it is 11, as in tf_cnn_benchmarks: 10 classes and an unused one.
      examples: number of examples in each subset of the published data set; it is also the length
        of an epoch of synthetic data.
      files: names of the files, for messages.
      find: function from directory and subset to the files, in order. FlagError if there are none.
      count: function from files and subset to the number of examples. DataError if a file cannot be
        used.
      open: function from an `InputSpec` to the `Pipeline` that reads the files.
      check: function that checks every record. Its arguments are the files and the number of
        classes; it returns `Findings`.
      missing: function from the existing files of a subset to the names of missing files.
      left_out: function from the files of a subset to files that are not read although their names
        resemble them.
      preprocessors: values of ``--input_preprocessor`` that its pipeline supports.
      skips_bad_records: whether its pipeline supports ``--on_bad_record=skip``.
      augments: whether its pipeline supports ``--augment``.
      elements: parts of one example; by default an image and its class.
    """

    name: str
    num_classes: int
    examples: Mapping[str, int]
    files: str
    find: Callable[[str, str], Sequence[Path | str]] = field(repr=False)
    count: Callable[[Sequence[Path], str], int] = field(repr=False)
    open: Callable[[InputSpec], Annotated[Any, _pipeline_fault]] = field(repr=False)
    check: Callable[[Sequence[Path], int], Findings] = field(repr=False)
    missing: Callable[[Sequence[Path]], Sequence[str]] = field(default=lambda _: (), repr=False)
    left_out: Callable[[Sequence[Path]], Sequence[Path]] = field(default=lambda _: (), repr=False)
    preprocessors: tuple[str, ...] = ("default",)
    skips_bad_records: bool = False
    augments: bool = False
    elements: tuple[Element, ...] = IMAGE_CLASSIFICATION

    def __post_init__(self) -> None:
        """Checks the attributes. UsageError names an invalid attribute."""
        plugins.check_name("a data set", self.name)
        interfaces.check_plugin_attributes(self, Dataset, f"data set {self.name}")
        for subset in SUBSETS:
            count = self.examples.get(subset, 0)
            if count < 1:
                what = f"examples[{subset!r}] must be at least 1, not {count}"
                raise UsageError(f"data set {self.name}: {what}")

    def num_examples(self, subset: str, data_dir: str | None = None) -> int:
        """Number of examples in one epoch of ``subset`` ("train" or "validation").

        With ``data_dir``, the examples in its files are counted. Otherwise, the result is the size
        of the published data set. FlagError if there are no files; DataError if a file cannot be
        used.
        """
        if data_dir is None:
            return self.examples[subset]
        files = self._required_files(data_dir, subset)
        examples = self.count(files, subset)
        if examples < 1:
            raise DataError(f"{data_dir}: the {subset} files contain no records")
        return examples

    def file_notices(self, subset: str, data_dir: str) -> list[str]:
        """Returns notices about missing files of a subset, and about files with similar names that
        are not read.
        """
        files, notices = self._required_files(data_dir, subset), []
        if missing := self.missing(files):
            count = f"{len(missing)} of {len(missing) + len(files)} {subset} files are missing"
            notices.append(f"{count}, the first {missing[0]}; epochs are shorter")
        if extra := self.left_out(files):
            notices.append(f"{subset} files not read: {len(extra)}, the first {extra[0].name}")
        return notices

    def files_by_subset(self, data_dir: str) -> dict[str, Sequence[Path]]:
        """Finds the files of each subset in a directory. FlagError if there are none."""
        subsets = self._subset_files(data_dir)
        if not subsets:
            raise FlagError("data_dir", data_dir, f"contains no {self.name} files ({self.files})")
        return subsets

    def find_first_defect(self, spec: InputSpec, timeout_seconds: float) -> str:
        """Searches the files of an input for a defect, within a time limit. Returns the first
        defect that `check` finds; "" if it finds none in time.
        """
        found: list[str] = []

        def look_for_defects() -> None:
            # An error in this check is ignored; otherwise it would replace the error that the
            # caller reports.
            with contextlib.suppress(Exception):
                files = self._required_files(str(spec.data_dir), spec.subset)
                found.extend(self.check(files, spec.num_classes).defects)

        thread = threading.Thread(target=look_for_defects, daemon=True)
        thread.start()
        thread.join(timeout_seconds)
        return next(iter(found), "")

    def _required_files(self, data_dir: str, subset: str) -> list[Path]:
        files = [local_or_url_path(path) for path in self.find(data_dir, subset)]
        absent = next((path for path in files if not (path.is_file() or path.exists())), None)
        if absent is not None:
            who = plugins.plugin_of_object("data set", self.name) or f"--data_name={self.name}"
            raise UsageError(f"{who}: find() returned {absent}, which does not exist")
        if not files:
            raise FlagError("data_dir", data_dir, f"contains no {self.name} {subset} files")
        return files

    def _subset_files(self, data_dir: str) -> dict[str, Sequence[Path]]:
        subsets: dict[str, Sequence[Path]] = {}
        for subset in SUBSETS:
            try:
                subsets[subset] = self._required_files(data_dir, subset)
            except FlagError as error:
                # The files exist but are unreadable or defective, so the user must see this error
                # instead of "no files".
                if error.__cause__ is not None:
                    raise
        return subsets


DATASETS = SpecRegistry(
    Dataset,
    "open",
    kind="data set",
    call="cnnbench.data.register_dataset(Dataset(...))",
    flag="data_name",
    group="cnnbench.datasets",
)
"""All data sets by name, in the order of registration."""

register_dataset = DATASETS.register


def load_plugin(path: str) -> tuple[str, ...]:
    """Runs a file that calls `register_dataset`. Returns the names of the data sets."""
    return tuple(map(str, plugins.load_plugin_file(path)["data set"]))


def dataset_names() -> tuple[str, ...]:
    """Returns the values that ``--data_name`` accepts, in the order of registration."""
    return tuple(DATASETS)


def find_dataset(data_name: str | None, data_dir: str | None, model: str | None = None) -> Dataset:
    """Returns the data set that --data_name, --data_dir and --model select. FlagError if the name
    is unknown or the choice is ambiguous.

    If no name is given, the result is the first data set whose name is part of ``data_dir``, or
    else the data set whose files are in this directory. If neither a name nor a directory is given,
    the result is the only data set for which the model is registered. If the model is registered
    for several data sets including ImageNet, or if there is no model, the result is ImageNet.
    """
    if data_name is not None:
        return DATASETS.find(data_name)
    if data_dir is None:
        names = () if model is None else registry.datasets_of(model)
        if not names or "imagenet" in names:
            return DATASETS["imagenet"]
        if len(names) > 1:
            reason = f"is a model for {' and '.join(names)}; give --data_name"
            raise FlagError("model", str(model), reason)
        return find_dataset(names[0], None)
    for name, dataset in DATASETS.items():
        if name in data_dir:
            return dataset
    return detect_dataset(data_dir)


def detect_dataset(data_dir: str) -> Dataset:
    """Detects which data set a directory contains, from the names of its files.

    If the files of several data sets are found, the data set that was registered last is used.
    """
    with converting_read_errors(data_dir):
        for dataset in reversed(DATASETS.values()):
            if dataset._subset_files(data_dir):
                return dataset
    known = "; ".join(f"{name}: {dataset.files}" for name, dataset in DATASETS.items())
    raise FlagError("data_dir", data_dir, f"contains no files of a known data set ({known})")


# Specification of an input as one immutable value, without flags and without TensorFlow

Preprocess = Callable[[Mapping[str, Tensor], Tensor], Mapping[str, Tensor]]
"""Function from an example and a seed to the delivered elements; see `Model.preprocess`."""

OTHER_LABEL = "other_label"
OWN_SHARE = "own_share"
_OF_MIXED = (
    Element(OTHER_LABEL, (), "label", "int64"),
    Element(OWN_SHARE, (), "label"),
)
"""Additional labels of a mixed image: the label of the other image, and the share of the image's
own label.
"""


@dataclass(frozen=True, kw_only=True)
class InputSpec(DataParams):
    """Specification of one input: which examples are read or generated, how they are preprocessed,
    and for which devices.

    The flags in `DataParams`, such as ``resize_method``, are attributes, too. Without ``data_dir``,
    data is synthetic.

    Attributes:
      subset: "train" (shuffled, repeated, optionally distorted) or "validation" (exact passes in a
        fixed order; padding in the last batch has weight 0).
      batch_per_device: examples that a tower gets from each `next`.
      passes: calls of `next` per training step. Synthetic data differ in each.
      image_size: height and width of the delivered images, in pixels; 0 without images.
      num_classes: labels must be in [0, num_classes).
      examples: parts of an example in `dataset`, with numbers as sizes; by default all parts.
      elements: parts that preprocessing makes, with numbers as sizes; by default all parts.
      preprocess: function that makes the elements from an example; None if they are the same.
      dtype: dtype of floating-point features: "float32", "float16" or "bfloat16". Preprocessing
        uses float32.
      num_shards: number of processes that share the data. Each process reads its own part.
      shard_index: the part to read. For synthetic data, it selects rows from the global batch of
        all shards.
      shard_files: True if a training shard consists of whole files, so that shards may differ in
        size; False if it is an equal part of all records.
      host: the CPU that reads and prepares: its full device name, or "CPU:0" for this process.
      shuffle_buffer: number of records from which the next training record is drawn.
    """

    dataset: Dataset
    subset: str
    batch_per_device: int
    num_devices: int
    passes: int = 1
    image_size: int = 0
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

    def __post_init__(self) -> None:
        """Replaces unset attributes, such as `num_classes`, by values that follow from the data set
        and from other attributes.
        """
        if self.num_classes == 0:
            object.__setattr__(self, "num_classes", self.dataset.num_classes)
        if not self.examples:
            examples = resolve_sizes(self.dataset.elements, self, self.num_classes)
            object.__setattr__(self, "examples", examples)
        if not self.elements:
            object.__setattr__(self, "elements", self.examples)
        if self.official_preprocessing:
            settled = {"resize_method": "bilinear", "distortions": False, "ml_perf": False}
            for name, value in settled.items():
                object.__setattr__(self, name, value)

    @property
    def training(self) -> bool:
        """Whether the input is for training: shuffled, endless and optionally distorted."""
        return self.subset == "train"

    @property
    def official_preprocessing(self) -> bool:
        """Whether images are preprocessed as in TensorFlow's official models."""
        return self.input_preprocessor == "official_models_imagenet"

    @property
    def mixes_images(self) -> bool:
        """Whether each image is mixed with another image of its batch (mixup, CutMix)."""
        return self.training and bool(self.data_dir) and self.mixup_alpha + self.cutmix_alpha > 0

    @property
    def required_batch_multiple(self) -> int:
        """Number of which the batch size per device must be a multiple: 2 if images are mixed in
        pairs, otherwise 1.
        """
        return 2 if self.mixes_images else 1

    @property
    def delivered_elements(self) -> tuple[Element, ...]:
        """The elements of a delivered batch: `elements`, and further labels of mixed images."""
        return (*self.elements, *_OF_MIXED) if self.mixes_images else self.elements

    @property
    def process_batch_size(self) -> int:
        """Number of examples per step, for all towers of this process together."""
        return self.batch_per_device * self.num_devices

    def dtype_of(self, element: Element) -> str:
        """Returns the dtype of an element in batches. Floating-point features have the dtype of the
        run: float32, float16 or bfloat16.
        """
        by_precision = element.role == "feature" and element.dtype == "float32"
        return self.dtype if by_precision else element.dtype

    def batch_tensor_specs(self, batch_size: int | None) -> dict[str, Any]:
        """Returns the ``tf.TensorSpec`` of each element in a batch of `batch_size` examples, by
        name of the element.

        `batch_size` is None if the number of examples varies.
        """
        import tensorflow as tf

        return {
            one.name: tf.TensorSpec([batch_size, *one.sizes], tf.as_dtype(self.dtype_of(one)))
            for one in self.delivered_elements
        }

    @classmethod
    def from_flags(cls, flags: object, **fields: Any) -> InputSpec:
        """Creates the specification of an input from the attributes in ``fields``. All other
        attributes are taken from data flags of the same name in ``flags``.
        """
        names = {field.name for field in dataclasses.fields(DataParams)} - fields.keys()
        taken = {name: getattr(flags, name) for name in names if hasattr(flags, name)}
        return cls(**taken, **fields)


# Interface of all inputs: for each step, an input delivers one batch for each tower.

CLOSE_SECONDS = 2.0


def close_inputs(sources: Iterable[InputSource], timeout_seconds: float) -> None:
    """Closes several inputs. Waits at most `timeout_seconds` for all of them together."""
    end = time.monotonic() + timeout_seconds
    for source in sources:
        source.close(max(0.0, end - time.monotonic()))


class TowerBatch(NamedTuple):
    """The batch of one tower in one step, on the tower's device. A batch can be an argument of a
    ``tf.function``.

    Attributes:
      features: the feature or, if there are several, a mapping by name. Images are [batch, height,
        width, channels] in the spec's dtype. They are approximately N(0, 1/2) in [-1, 1]; with
        ml_perf, they are 0..255 minus the channel means.
      labels: the label or, if there are several, a mapping by name. Classes are int64 [batch].
        Mixed images have the additional labels `OTHER_LABEL`, int64 [batch], the class of the other
        image, and `OWN_SHARE`, float32 [batch], the share of the image's own class.
      weights: float32 [batch], 1 for an example and 0 for padding; None in training.
    """

    features: Tensors
    labels: Tensors
    weights: Any = None

    @classmethod
    def from_values(
        cls, elements: Sequence[Element], values: Mapping[str, Tensor], weights: Any = None
    ) -> TowerBatch:
        """Creates a batch from a mapping of element names to tensors."""
        features = group_values(elements, "feature", values)
        return cls(features, group_values(elements, "label", values), weights)


class InputSource(AbstractContextManager["InputSource"]):
    """Base class of inputs. For each step, an input delivers one batch for each tower, either
    synthetic or read from files.

    `examples_per_epoch` includes all shards. `wait_seconds` is the total time for which `next` has
    blocked.
    """

    synthetic: bool = False

    def __init__(self, spec: InputSpec, devices: Sequence[str], examples_per_epoch: int) -> None:
        self.spec = spec
        self.devices = tuple(devices)
        self.examples_per_epoch = examples_per_epoch
        self.wait_seconds = 0.0
        self.batches = 0

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps per pass over the examples of this process. The last is padded."""
        per_shard = -(-self.examples_per_epoch // self.spec.num_shards)
        return -(-per_shard // self.spec.process_batch_size)

    @property
    def element_spec(self) -> tuple[TowerBatch, ...]:
        """The structure that `next` returns, with ``tf.TensorSpec`` instead of tensors: one
        TowerBatch for each tower.
        """
        import tensorflow as tf

        spec = self.spec
        rows = spec.batch_per_device
        weights = None if spec.training else tf.TensorSpec([rows], tf.float32)
        return (
            TowerBatch.from_values(spec.delivered_elements, spec.batch_tensor_specs(rows), weights),
        ) * spec.num_devices

    @property
    def step_argument_specs(self) -> tuple[TowerBatch, ...]:
        """Specs (``tf.TensorSpec``) of the arguments of a step that uses this input."""
        return self.element_spec

    def get_tower_batch(self, tower: int, batches: Sequence[TowerBatch]) -> TowerBatch:
        """Returns the batch of one tower. Call it while a step is traced, in the scope of the
        tower's device.
        """
        return batches[tower]

    @abc.abstractmethod
    def next(self) -> tuple[TowerBatch, ...]:
        """Returns the batches of the next step, in the order of the towers. DataError names the
        file and the record that cannot be read.
        """

    def seconds_waiting_by_shard(self) -> dict[int, float]:
        """Returns for how many seconds each shard, by number, has been waiting for a batch."""
        return {}

    @property
    def of_workers(self) -> tuple[InputSource, ...]:
        """The inputs of the single workers whose batches this input joins."""
        return (self,)

    def sources_to_time(self) -> tuple[InputSource, ...]:
        """Returns `of_workers`, to read them one by one. Do not call `next` any more."""
        return self.of_workers

    def stages(self) -> list[Any]:
        """Returns the stages of the input pipeline (`PipelineStage` in `cnnbench.data.pipeline`),
        so that their speed can be measured; empty if the input is synthetic.
        """
        return []

    def skipped(self) -> SkippedRecords:
        """Returns the bad records that were skipped so far; see `Pipeline.skipped`."""
        return SkippedRecords()

    def skipped_records_by_shard(self, steps: int) -> list[int]:
        """Returns, for each shard that this process reads, how many bad records were skipped during
        the first `steps` training steps.

        Records that earlier runs skipped (see `resume`) are included.
        """
        del steps
        return []

    def resume(
        self, examples: int, global_batch: int, skipped_by_shard: Sequence[int] = ()
    ) -> bool:
        """Continues the input of earlier runs after `examples` training examples of all shards, in
        steps of `global_batch` examples. Call it before the first `next`.

        If several shards share a global batch, `examples` is rounded up to whole batches.
        `skipped_by_shard` is the number of records skipped up to then, for each shard. It is
        ignored if the number of shards differs. Returns whether the input can continue; otherwise
        `next` starts with the first batch of the data.
        """
        return True

    def restart(self) -> None:
        """Starts a new pass over the data. Has no effect if the data is synthetic."""

    def close(self, timeout_seconds: float = CLOSE_SECONDS) -> None:
        """Stops reading and frees the buffers. A later call of `next` or `restart` starts reading
        again.

        Waits at most `timeout_seconds` for batches that are being read.
        """

    def __exit__(self, *error: object) -> None:
        self.close()
