"""Where an input is opened, and the data sets that come with cnnbench.

TensorFlow is imported when an input is made, NumPy when files of CIFAR-10 are looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cnnbench.data import imagenet_files
from cnnbench.data.dataset import Dataset, register_dataset
from cnnbench.data.source import InputSource
from cnnbench.data.spec import PREPROCESSORS, InputSpec
from cnnbench.models.elements import IMAGE, Draw, Element

if TYPE_CHECKING:
    from cnnbench.data.distributed import InputDistribution
    from cnnbench.data.findings import Findings
    from cnnbench.data.pipeline import Pipeline


def make_input(
    spec: InputSpec, devices: Sequence[str], distribution: InputDistribution | None = None
) -> InputSource:
    """The input that ``spec`` describes, ready to deliver to ``devices``.

    Args:
      spec: what to deliver; without ``data_dir`` the data is synthetic.
      devices: one device string per tower.
      distribution: how a strategy takes batches of files to the devices; None: as towers do.

    Raises:
      FlagError: ``data_dir`` holds no files of this subset.
      DataError: a file that cannot be read as this data set.
    """
    if spec.data_dir is None:
        from cnnbench.data.synthetic import SyntheticInput

        return SyntheticInput(spec, devices)
    import tensorflow as tf

    from cnnbench.data.prefetch import PipelineInput

    with spec.dataset.own_code(tf.errors.OpError):
        pipeline = spec.dataset.open(spec)
    if distribution is not None:
        from cnnbench.data.distributed import DistributedInput

        return DistributedInput(spec, devices, pipeline, distribution)
    return PipelineInput(spec, devices, pipeline)


def _open_imagenet(spec: InputSpec) -> Pipeline:
    from cnnbench.data.imagenet import ImageNetPipeline

    return ImageNetPipeline(spec)


def _open_cifar10(spec: InputSpec) -> Pipeline:
    from cnnbench.data.cifar10 import Cifar10Pipeline

    return Cifar10Pipeline(spec)


def _count_imagenet(files: Sequence[Path], subset: str) -> int:
    return imagenet_files.count_examples(files, IMAGENET, subset)


def _check_imagenet(files: Sequence[Path], num_classes: int) -> Findings:
    from cnnbench.data.imagenet_records import check_files

    return check_files(files, num_classes)


def _find_cifar10(data_dir: str, subset: str) -> Sequence[Path]:
    from cnnbench.data import cifar10_files

    return cifar10_files.find_files(data_dir, subset)


def _count_cifar10(files: Sequence[Path], subset: str) -> int:
    from cnnbench.data import cifar10_files

    del subset
    return cifar10_files.count_examples(files)


def _check_cifar10(files: Sequence[Path], num_classes: int) -> Findings:
    from cnnbench.data import cifar10_files

    return cifar10_files.check_files(files, num_classes)


def _find_ratings(data_dir: str, subset: str) -> Sequence[Path]:
    from cnnbench.data import ratings_files

    return ratings_files.find_files(data_dir, subset)


def _count_ratings(files: Sequence[Path], subset: str) -> int:
    from cnnbench.data import ratings_files

    return ratings_files.count_examples(files, subset)


def _open_ratings(spec: InputSpec) -> Pipeline:
    from cnnbench.data.ratings import RatingsPipeline

    return RatingsPipeline(spec)


def _check_ratings(files: Sequence[Path], num_classes: int) -> Findings:
    from cnnbench.data import ratings_files

    return ratings_files.check_files(files, num_classes)


def _find_coco(data_dir: str, subset: str) -> Sequence[Path]:
    return imagenet_files.find_files(data_dir, subset, "coco-")


def _count_records(files: Sequence[Path], subset: str) -> int:
    del subset
    return imagenet_files.count_all(files)


def _open_coco(spec: InputSpec) -> Pipeline:
    from cnnbench.data.coco import CocoPipeline

    return CocoPipeline(spec)


def _check_coco(files: Sequence[Path], num_classes: int) -> Findings:
    from cnnbench.data.coco_records import check_files

    return check_files(files, num_classes)


def _find_librispeech(data_dir: str, subset: str) -> Sequence[Path]:
    return imagenet_files.find_files(data_dir, subset, "librispeech-")


def _open_librispeech(spec: InputSpec) -> Pipeline:
    from cnnbench.data.librispeech import LibriSpeechPipeline

    return LibriSpeechPipeline(spec)


def _check_librispeech(files: Sequence[Path], num_classes: int) -> Findings:
    from cnnbench.data.librispeech_records import check_files

    return check_files(files, num_classes)


IMAGENET = Dataset(
    name="imagenet",
    num_classes=1001,
    examples={"train": 1_281_167, "validation": 50_000},
    files="train-*-of-* and validation-*-of-*",
    find=imagenet_files.find_files,
    count=_count_imagenet,
    open=_open_imagenet,
    check=_check_imagenet,
    missing=imagenet_files.missing_shards,
    skips_bad_records=True,
    preprocessors=PREPROCESSORS,
)
CIFAR10 = Dataset(
    name="cifar10",
    num_classes=11,
    examples={"train": 50_000, "validation": 10_000},
    files="data_batch_* and test_batch",
    find=_find_cifar10,
    count=_count_cifar10,
    open=_open_cifar10,
    check=_check_cifar10,
)
RATINGS = Dataset(
    name="ratings",
    num_classes=2,
    examples={"train": 99_308_850, "validation": 13_849_300},
    files="ratings-train.npz and ratings-validation.npz",
    find=_find_ratings,
    count=_count_ratings,
    open=_open_ratings,
    check=_check_ratings,
    elements=(
        Element("user", (), "feature", "int64", Draw.integers(0, 138_493)),
        Element("item", (), "feature", "int64", Draw.integers(0, 26_744)),
        Element("label", (), "label", "int64", Draw.integers(0, "num_classes")),
    ),
)
COCO = Dataset(
    name="coco",
    num_classes=81,
    examples={"train": 118_287, "validation": 4_952},
    files="coco-train-*-of-* and coco-validation-*-of-*",
    find=_find_coco,
    count=_count_records,
    open=_open_coco,
    check=_check_coco,
    missing=imagenet_files.missing_shards,
    skips_bad_records=True,
    elements=(
        IMAGE,
        Element("num_boxes", (), "label", "int64", Draw.integers(1, 20)),
        Element("boxes", (200, 4), "label", "float32", Draw.boxes(), rows="num_boxes"),
        Element(
            "classes", (200,), "label", "int64", Draw.integers(1, "num_classes"), rows="num_boxes"
        ),
        Element("is_crowd", (200,), "label", "int64", Draw.integers(0, 1), rows="num_boxes"),
        Element("source_id", (), "label", "int64", Draw.integers(0, 1_000_000)),
    ),
)
LIBRISPEECH = Dataset(
    name="librispeech",
    num_classes=29,
    examples={"train": 281_241, "validation": 2_620},
    files="librispeech-train-*-of-* and librispeech-validation-*-of-*",
    find=_find_librispeech,
    count=_count_records,
    open=_open_librispeech,
    check=_check_librispeech,
    missing=imagenet_files.missing_shards,
    skips_bad_records=True,
    # The model says how long an example may be, and what the shortest synthetic one is.
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
register_dataset(IMAGENET)
register_dataset(CIFAR10)
register_dataset(RATINGS)
register_dataset(COCO)
register_dataset(LIBRISPEECH)
