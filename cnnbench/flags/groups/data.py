"""Flags for data sets and image preprocessing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from cnnbench.base.rules import FlagRule, no_effect, no_effect_with, no_effect_without
from cnnbench.flags.declare import ComparedBy, RunPart, flag, names_of_flags, specs_of
from cnnbench.flags.facts import RunFacts, no_effect_forward
from cnnbench.flags.groups.runtime import MOST_THREADS
from cnnbench.models.registry import datasets

PREPROCESSORS = ("default", "official_models_imagenet")
RESIZE_METHODS = ("nearest", "bilinear", "bicubic", "area", "round_robin", "crop")

MOST_BUFFERED = 2**20
"""Maximum number of batches or records. More would not fit into any memory."""


_mixing = partial(
    flag,
    minimum=0,
    maximum=1000,
    part=RunPart.MIXING,
)


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class DataParams:
    """Flags for data sets and image preprocessing."""

    data_dir: str | None = flag(
        None,
        "Folder with the data set. If not given, synthetic images are used.",
        path="folder or URL",
        compared_by=ComparedBy.PRESENCE,
        unset="",
        part=RunPart.HEADER,
    )
    data_name: str | None = flag(
        None,
        "Data set: imagenet, cifar10, coco, librispeech, ratings, or a name that a plug-in "
        "registers. If not given, the data set is inferred from the path of --data_dir or from "
        "its files. Without --data_dir, the data set of --model is used, or imagenet if the model "
        "has several.",
        known=datasets,
        unset="",
        part=RunPart.HEADER,
    )

    # Flags for reading and preprocessing examples.
    resize_method: str = flag(
        "bilinear",
        "How ImageNet images are resized, in training and in evaluations. round_robin uses the "
        "first four methods in turn, one for each image. crop cuts out a part of the image "
        "without resizing.",
        choices=RESIZE_METHODS,
    )
    distortions: bool = flag(
        False,
        "Distort training images: colours (imagenet), or pad, crop and flip (cifar10).",
    )
    distort_color_in_yiq: bool = flag(
        True,
        "Distort hue and saturation in YIQ space instead of HSV space.",
    )
    augment: str = flag(
        "none",
        "Change training images at random. trivialaugment makes one change of random strength. "
        "randaugment makes two changes of strength 9 of 10. Both choose from 14 changes "
        "(cnnbench docs data lists them).",
        choices=("none", "randaugment", "trivialaugment"),
    )
    mixup_alpha: float = _mixing(
        0.0,
        "Mix each training image with another image of its batch, and their labels in the same "
        "shares (mixup). The shares are drawn from Beta(X, X). With 0, no images are mixed. With "
        "--cutmix_alpha, half of the images are mixed in each way.",
    )
    cutmix_alpha: float = _mixing(
        0.0,
        "Replace a rectangle of each training image by the same rectangle of another image of its "
        "batch, and mix their labels by area (CutMix). The areas are drawn from Beta(X, X). With "
        "0, nothing is replaced.",
    )
    fuse_decode_and_crop: bool = flag(True, "Decode only the part of a JPEG that the crop keeps.")
    jpeg_fancy_upscaling: bool = flag(
        True,
        "Interpolate the colour of JPEGs that store colour at a lower resolution (4:2:0), as in "
        "tf_cnn_benchmarks. If false, pixels are repeated, which is faster and less exact.",
    )
    input_preprocessor: str = flag(
        "default",
        "Preparation of the images. official_models_imagenet prepares images like TensorFlow's "
        "official ResNets: the channel means are subtracted, and in evaluations the shorter side "
        "is resized to 256 and the centre is used.",
        choices=PREPROCESSORS,
    )
    ml_perf: bool = flag(
        False,
        "Prepare ImageNet images as MLPerf requires: subtract the channel means, do not scale the "
        "values, and crop without bounding boxes.",
    )
    datasets_use_prefetch: bool = flag(
        True, "Copy the next batch to its device while the current step runs."
    )
    datasets_prefetch_buffer_size: int = flag(
        1,
        "Number of batches that are kept ready for each device.",
        minimum=1,
        maximum=MOST_BUFFERED,
    )
    multi_device_iterator_max_buffer_size: int = flag(
        1,
        "Number of batches that are kept ready in host memory for each device.",
        minimum=1,
        maximum=MOST_BUFFERED,
    )
    datasets_num_private_threads: int | None = flag(
        None,
        "Threads of the input pipeline. With 0, the pipeline shares TensorFlow's own threads. If "
        "not given, the number depends on the number of cores.",
        minimum=0,
        maximum=MOST_THREADS,
        part=RunPart.THREADS,
    )
    datasets_use_caching: bool = flag(
        False, "Keep the encoded records in memory after the first pass."
    )
    datasets_repeat_cached_sample: bool = flag(
        False,
        "Read one record and repeat it without end, to exclude the disk from the measurement.",
    )
    datasets_parallel_interleave_cycle_length: int | None = flag(
        None,
        "Number of files that are read at the same time; 10 if not given.",
        minimum=1,
        maximum=MOST_THREADS,
    )
    datasets_parallel_interleave_prefetch: int | None = flag(
        None,
        "Number of records that are read in advance from every open file.",
        minimum=0,
        maximum=MOST_BUFFERED,
    )
    datasets_sloppy_parallel_interleave: bool = flag(
        False,
        "Do not wait for a slow file: records of other files come first. Faster, but the "
        "order of the records changes from run to run.",
    )
    on_bad_record: str = flag(
        "fail",
        "What happens if a record cannot be used. fail: the run ends. skip: the record is "
        "skipped, counted and named (only for data sets of TFRecords). A file that is cut off is "
        "always refused.",
        choices=("fail", "skip"),
    )


_READING = tuple(
    spec.name for spec in specs_of(DataParams) if spec.name not in ("data_dir", "data_name")
)

RULES: tuple[FlagRule[RunFacts], ...] = (
    no_effect_with(("distortions", "augment"), "eval", ": they change training images"),
    no_effect_forward(names_of_flags(specs_of(DataParams), RunPart.MIXING)),
    no_effect_without(_READING, "data_dir"),
    no_effect(
        ("resize_method", "distortions", "distort_color_in_yiq", "ml_perf"),
        lambda p: p.params.input_preprocessor == "official_models_imagenet",
        "with --input_preprocessor=official_models_imagenet",
    ),
    no_effect_without("distort_color_in_yiq", "distortions"),
)
