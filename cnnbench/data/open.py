"""Creates inputs, and registers the data sets that are part of cnnbench.

TensorFlow is imported when an input is created, and NumPy when files of CIFAR-10 are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from cnnbench.base import plugins
from cnnbench.data import tfrecord
from cnnbench.data.dataset import Dataset, InputSource, InputSpec, register_dataset
from cnnbench.flags.groups.data import PREPROCESSORS
from cnnbench.models.elements import IMAGE, Draw, Element

if TYPE_CHECKING:
    from cnnbench.data.strategy_input import InputDistribution


def make_input(
    spec: InputSpec, devices: Sequence[str], distribution: InputDistribution | None = None
) -> InputSource:
    """Creates the input that ``spec`` describes, for the devices of the towers.

    `distribution` defines how a strategy copies batches that are read from files to the devices.
    FlagError if ``data_dir`` contains no files of this subset. DataError if a file cannot be read
    as this data set. UsageError if a plug-in's pipeline does not deliver the elements of ``spec``.
    """
    if spec.data_dir is None:
        from cnnbench.data.synthetic import SyntheticInput

        return SyntheticInput(spec, devices)
    from cnnbench.data.prefetch import PipelineInput

    pipeline = spec.dataset.open(spec)
    if not plugins.is_defined_by_cnnbench(spec.dataset.open):
        from cnnbench.data.pipeline import check_pipeline

        check_pipeline(pipeline, spec)
    if distribution is not None:
        from cnnbench.data.strategy_input import DistributedInput

        return DistributedInput(spec, devices, pipeline, distribution)
    return PipelineInput(spec, devices, pipeline)


def _import_on_call(name: str) -> Callable[..., Any]:
    """Returns a function that imports the module of ``MODULE.NAME``, and calls the function."""
    module, _, attribute = name.partition(".")

    def import_and_call(*arguments: object) -> Any:
        return getattr(import_module(f"cnnbench.data.{module}"), attribute)(*arguments)

    return import_and_call


def _tfrecord_keys(pipeline: str, prefix: str = "") -> dict[str, Any]:
    """Returns the arguments of `Dataset` for a data set whose examples are in TFRecord files
    ``<prefix><subset>-*-of-*``.
    """
    return {
        "files": f"{prefix}train-*-of-* and {prefix}validation-*-of-*",
        "find": partial(tfrecord.find_files, prefix=prefix),
        "count": tfrecord.count_examples,
        "missing": tfrecord.missing_shard_names,
        "left_out": tfrecord.find_unread,
        "open": _import_on_call(pipeline),
        "check": _import_on_call(f"{pipeline.partition('.')[0]}.check_files"),
        "skips_bad_records": True,
    }


IMAGENET = register_dataset(
    Dataset(
        name="imagenet",
        num_classes=1001,
        examples=tfrecord.PUBLISHED_EXAMPLES,
        preprocessors=PREPROCESSORS,
        augments=True,
        **_tfrecord_keys("imagenet.ImageNetPipeline"),
    )
)
CIFAR10 = register_dataset(
    Dataset(
        name="cifar10",
        num_classes=11,
        examples={"train": 50_000, "validation": 10_000},
        files="data_batch_* and test_batch",
        find=_import_on_call("cifar10_files.find_files"),
        count=_import_on_call("cifar10_files.count_examples"),
        missing=_import_on_call("cifar10_files.missing_files"),
        open=_import_on_call("in_memory.Cifar10Pipeline"),
        augments=True,
        check=_import_on_call("cifar10_files.check_files"),
    )
)
RATINGS = register_dataset(
    Dataset(
        name="ratings",
        num_classes=2,
        examples={"train": 99_308_850, "validation": 13_849_300},
        files="ratings-train.npz and ratings-validation.npz",
        find=_import_on_call("ratings_files.find_files"),
        count=_import_on_call("ratings_files.count_examples"),
        open=_import_on_call("in_memory.RatingsPipeline"),
        check=_import_on_call("ratings_files.check_files"),
        elements=(
            Element("user", (), "feature", "int64", Draw.integers(0, 138_493)),
            Element("item", (), "feature", "int64", Draw.integers(0, 26_744)),
            Element("label", (), "label", "int64", Draw.integers(0, "num_classes")),
        ),
    )
)
COCO = register_dataset(
    Dataset(
        name="coco",
        num_classes=81,
        examples={"train": 118_287, "validation": 4_952},
        **_tfrecord_keys("coco.CocoPipeline", "coco-"),
        elements=(
            IMAGE,
            Element("num_boxes", (), "label", "int64", Draw.integers(1, 20)),
            Element("boxes", (200, 4), "label", "float32", Draw.boxes(), rows="num_boxes"),
            Element(
                "classes",
                (200,),
                "label",
                "int64",
                Draw.integers(1, "num_classes"),
                rows="num_boxes",
            ),
            Element("is_crowd", (200,), "label", "int64", Draw.integers(0, 1), rows="num_boxes"),
            Element("source_id", (), "label", "int64", Draw.integers(0, 1_000_000)),
        ),
    )
)
LIBRISPEECH = register_dataset(
    Dataset(
        name="librispeech",
        num_classes=29,
        examples={"train": 281_241, "validation": 2_620},
        **_tfrecord_keys("librispeech.LibriSpeechPipeline", "librispeech-"),
        # Models set max_frames and max_letters, and min_frames, the minimum length of synthetic
        # examples.
        elements=(
            Element(
                "spectrogram",
                ("max_frames", 161),
                "feature",
                draw=Draw.normal(),
                rows="num_frames",
            ),
            Element("num_frames", (), "label", "int64", Draw.integers("min_frames", "max_frames")),
            Element(
                "transcript",
                ("max_letters",),
                "label",
                "int64",
                Draw.integers(0, 28),
                rows="transcript_length",
            ),
            Element("transcript_length", (), "label", "int64", Draw.integers(1, "max_letters")),
        ),
    )
)
