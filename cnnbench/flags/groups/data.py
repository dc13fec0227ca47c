"""Flags for data sets and image preprocessing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from cnnbench.flags.declare import Role, RunPart, flag
from cnnbench.flags.groups.runtime import MOST_THREADS
from cnnbench.models.model import datasets

PREPROCESSORS = ("default", "official_models_imagenet")
RESIZE_METHODS = ("nearest", "bilinear", "bicubic", "area", "round_robin", "crop")

MOST_BUFFERED = 2**20
"""Maximum number of batches or records. More would not fit into any memory."""


_reading = partial(flag, part=RunPart.READING, only_with="data_dir")
_tunable = partial(flag, part=RunPart.READING | RunPart.TUNABLE, only_with="data_dir")
_mixing = partial(
    flag,
    minimum=0,
    maximum=1000,
    part=RunPart.READING | RunPart.MIXING,
    only_with="data_dir",
)
_IMAGE = ("data_dir", "not input_preprocessor=official_models_imagenet")


@dataclass(frozen=True, kw_only=True)
class DataParams:
    """Flags for data sets and image preprocessing."""

    data_dir: str | None = flag(
        None,
        "Folder with the data set; without it, synthetic images are used.",
        path="folder or URL",
        role=Role.PLACE,
    )
    data_name: str | None = flag(
        None,
        "Data set: imagenet, cifar10, coco, librispeech, ratings, or what a plug-in registers. If"
        " not given, inferred from the path of --data_dir or the files there; without --data_dir,"
        " the data set of --model, or imagenet if the model has several.",
        known=datasets,
    )
    dataset_plugin: str | None = flag(
        None,
        "As --plugin, for a file that registers data sets.",
        path="file",
        role=Role.PLUGIN,
    )

    # Flags for reading and preprocessing examples.
    resize_method: str = _reading(
        "bilinear",
        "How ImageNet images are resized, in training and in evaluations; round_robin "
        "takes the first four in turn, image by image, crop cuts a piece out without resizing.",
        choices=RESIZE_METHODS,
        only_with=_IMAGE,
    )
    distortions: bool = _reading(
        False,
        "Distort training images: colours (imagenet), or pad, crop and flip (cifar10).",
        only_with=_IMAGE,
    )
    distort_color_in_yiq: bool = _reading(
        True,
        "Distort hue and saturation in YIQ space instead of HSV space.",
        only_with=(*_IMAGE, "distortions"),
    )
    augment: str = _reading(
        "none",
        "Change training images at random: trivialaugment makes one change of random strength,"
        " randaugment two of strength 9 of 10, both out of 14 (docs/data.md lists them).",
        choices=("none", "randaugment", "trivialaugment"),
    )
    mixup_alpha: float = _mixing(
        0.0,
        "Mix each training image with another one of its batch, and their labels in the same shares"
        " (mixup). The shares are drawn from Beta(X, X). 0 mixes none; with --cutmix_alpha, half of"
        " the images are mixed in each way.",
    )
    cutmix_alpha: float = _mixing(
        0.0,
        "Replace a rectangle of each training image by that of another one of its batch, and mix"
        " their labels by area (CutMix). The areas are drawn from Beta(X, X). 0 replaces none.",
    )
    fuse_decode_and_crop: bool = _reading(True, "Decode only the part of a JPEG that is kept.")
    jpeg_fancy_upscaling: bool = _reading(
        True,
        "Interpolate the colour of JPEGs that store it at a lower resolution (4:2:0), as in "
        "tf_cnn_benchmarks; without, pixels are repeated, which is faster and less exact.",
    )
    input_preprocessor: str = _reading(
        "default",
        "Preparation of the images; official_models_imagenet is that of TensorFlow's official "
        "ResNets: shorter side to 256 and the centre in evaluations, channel means subtracted.",
        choices=PREPROCESSORS,
    )
    ml_perf: bool = _reading(
        False,
        "Prepare ImageNet images as MLPerf asks: subtract the channel means, do not scale, "
        "crop without bounding boxes.",
        only_with=_IMAGE,
    )
    datasets_use_prefetch: bool = _tunable(
        True, "Copy the next batch to its device while the current step runs."
    )
    datasets_prefetch_buffer_size: int = _tunable(
        1, "Batches kept ready for each device.", minimum=1, maximum=MOST_BUFFERED
    )
    multi_device_iterator_max_buffer_size: int = _tunable(
        1,
        "Batches kept ready in host memory for each device.",
        minimum=1,
        maximum=MOST_BUFFERED,
    )
    datasets_num_private_threads: int | None = flag(
        None,
        "Threads of the input pipeline; 0 shares TensorFlow's own, chosen by the number of "
        "cores if not given.",
        minimum=0,
        maximum=MOST_THREADS,
        part=RunPart.READING | RunPart.TUNABLE | RunPart.THREADS,
        only_with="data_dir",
    )
    datasets_use_caching: bool = _tunable(
        False, "Keep the encoded records in memory after the first pass."
    )
    datasets_repeat_cached_sample: bool = _reading(
        False, "Read one record and repeat it for ever, to exclude the disk from the measurement."
    )
    datasets_parallel_interleave_cycle_length: int | None = _tunable(
        None, "Files read at once; 10 if not given.", minimum=1, maximum=MOST_THREADS
    )
    datasets_parallel_interleave_prefetch: int | None = _tunable(
        None,
        "Records read ahead of need from every open file.",
        minimum=0,
        maximum=MOST_BUFFERED,
    )
    datasets_sloppy_parallel_interleave: bool = _reading(
        False, "Let a slow file be overtaken: faster, but the order changes from run to run."
    )
    on_bad_record: str = _reading(
        "fail",
        "What a record that cannot be used does: end the run, or be skipped, counted and named; "
        "skip is for data sets of TFRecords. A file that is cut off is refused in either case.",
        choices=("fail", "skip"),
    )
