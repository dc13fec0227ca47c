"""``cnnbench data``: make and check data sets."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cnnbench.base import plugins
from cnnbench.base.terminal import LineWriter
from cnnbench.base.text import count_text, enumeration
from cnnbench.data.dataset import SUBSETS, detect_dataset, find_dataset
from cnnbench.data.folder import find_images
from cnnbench.data.ratings_files import write_ratings_files
from cnnbench.errors import BenchmarkError, DataError, ExitCode, FlagError, UsageError
from cnnbench.flags import flag, parse_command, redeclare_flag, specs_of
from cnnbench.flags.groups.run import RunParams
from cnnbench.models.registry import datasets
from cnnbench.run.runtime.native_log import filtered_stderr

_ABOUT = """\
Usage: cnnbench data make-imagenet DIR OUT [FLAGS]
       cnnbench data make-coco SOURCE OUT [FLAGS]
       cnnbench data make-librispeech SOURCE OUT [FLAGS]
       cnnbench data make-ratings SOURCE OUT [FLAGS]
       cnnbench data check DIR [FLAGS]

make-imagenet turns DIR/CLASS/*.jpg|jpeg|png, or DIR/train/CLASS/* and DIR/validation/CLASS/*,
into TFRecord files in OUT with the keys of ImageNet, and writes labels.txt. Classes are numbered
from 1 in order of their folders' names; 0 is the background. PNGs, grey or CMYK JPEGs, and
photographs that their EXIF orientation turns, become upright RGB JPEGs of quality 100.

make-coco turns SOURCE/annotations/instances_train2017.json and instances_val2017.json (or another
year) with the images in SOURCE/train2017 and SOURCE/val2017 into TFRecord files, and writes
coco-labels.txt. Classes are numbered from 1 in order of COCO's own numbers.

make-librispeech turns the folders train-* and test-clean of SOURCE, as published but with the audio
converted from FLAC to WAV, into TFRecord files.

make-ratings turns MovieLens' ratings.dat or ratings.csv, or the folder with it, into pairs of user
and item. The last item that each user rated is kept for validation, together with items that the
user did not rate.

check reads every record of a data set, and checks checksums, keys, labels and images. It prints
statistics, and a line per defect with the names of file and record.
"""

_EXIT_CODES = """\
Exit codes: 0 done; 4 an image that cannot be read, or defects; 2 wrong use.
"""


@dataclass(frozen=True, kw_only=True)
class MakeImagenetFlags:
    """Flags of `cnnbench data make-imagenet`."""

    train_shards: int = flag(8, "Training files.", minimum=1)
    validation_shards: int = flag(2, "Validation files.", minimum=1)
    validation_fraction: float = flag(
        0.1,
        "Share of the images of each class that is used for validation, unless DIR/validation "
        "exists.",
        minimum=0,
        below=1,
    )
    seed: int = flag(1234, "Seed of the random split and order.")
    labels: str | None = flag(
        None,
        "File with the class folders in the order of their labels, one per line. A name of the "
        "class may follow. If the first line is background, it has label 0.",
        path="file",
    )


@dataclass(frozen=True, kw_only=True)
class MakeCocoFlags:
    """Flags of `cnnbench data make-coco`."""

    train_shards: int = flag(64, "Training files.", minimum=1)
    validation_shards: int = flag(8, "Validation files.", minimum=1)
    seed: int = flag(1234, "Seed of the order.")


@dataclass(frozen=True, kw_only=True)
class MakeLibrispeechFlags(MakeCocoFlags):
    """Flags of `cnnbench data make-librispeech`."""

    validation: str = flag("test-clean", "Folder in SOURCE with the validation data.")


@dataclass(frozen=True, kw_only=True)
class MakeRatingsFlags:
    """Flags of `cnnbench data make-ratings`."""

    negatives: int = flag(
        99,
        "Number of different unrated items that are drawn for each user in validation. The user's "
        "last item is ranked among them. The maximum is the number of items that the user with "
        "the most ratings has not rated.",
        minimum=1,
    )
    min_ratings: int = flag(20, "Users with fewer ratings are left out.", minimum=2)
    seed: int = flag(1234, "Seed of the draws.", minimum=0)


@dataclass(frozen=True, kw_only=True)
class CheckFlags:
    """Flags of `cnnbench data check`."""

    data_name: str | None = flag(
        None, "Data set. If not given, it is inferred from the files.", known=datasets
    )
    plugin: tuple[str, ...] = redeclare_flag(RunParams, "plugin")
    num_classes: int | None = flag(
        None,
        "Labels must be smaller than this number. If not given, the number that the data set "
        "declares is used.",
        minimum=1,
    )


_FLAGS = (
    ("Flags of make-imagenet", specs_of(MakeImagenetFlags)),
    ("Flags of make-coco", specs_of(MakeCocoFlags)),
    ("Flags of make-librispeech", specs_of(MakeLibrispeechFlags)),
    ("Flags of make-ratings", specs_of(MakeRatingsFlags)),
    ("Flags of check", specs_of(CheckFlags)),
)
HELP = (_ABOUT, _FLAGS, _EXIT_CODES)


def main(argv: Sequence[str]) -> int:
    """Creates or checks a data set, as the first argument says.

    Raises DataError if images are unreadable or a checked data set has defects.
    """
    name, rest = (argv[0], argv[1:]) if argv else ("", ())
    if name not in _ACTIONS:
        raise UsageError(f"cnnbench data takes {enumeration(_ACTIONS)}, not {name!r}")
    flags, places, kind, act = _ACTIONS[name]
    values, arguments = parse_command(rest, specs_of(flags))
    if len(arguments) != len(places):
        raise UsageError(
            f"cnnbench data {name} takes {' and '.join(places)}, not {len(arguments)} arguments"
        )
    act(*map(kind, arguments), flags(**values))
    return ExitCode.OK


def _counts_text(out: Path, subsets: Mapping[str, Sequence[object]]) -> str:
    train, validation = (len(subsets.get(subset, ())) for subset in SUBSETS)
    return f"{out}: {train} training and {validation} validation"


def _make_imagenet(folder: Path, out: Path, options: MakeImagenetFlags) -> None:
    labels = None if options.labels is None else Path(options.labels)
    image_folder = find_images(folder, labels, options.validation_fraction, options.seed)
    shards = {"train": options.train_shards, "validation": options.validation_shards}
    with _quietly_on_cpu():
        from cnnbench.data.imagenet import write_imagenet

        reencoded = write_imagenet(image_folder, out, shards)
    line = (
        f"{_counts_text(out, image_folder.subsets)} images of {len(image_folder.classes)} classes, "
    )
    line += f"{reencoded} of them re-encoded"
    if image_folder.ignored:
        line += f"; ignored: {len(image_folder.ignored)}, the first {image_folder.ignored[0]}"
    LineWriter(sys.stdout).write_lines([line])


def _make_coco(source: Path, out: Path, options: MakeCocoFlags) -> None:
    shards = {"train": options.train_shards, "validation": options.validation_shards}
    with _quietly_on_cpu():
        from cnnbench.data.coco import read_annotations, write_coco

        annotations = read_annotations(source)
        write_coco(annotations, out, shards, options.seed)
    line = f"{_counts_text(out, annotations.subsets)} images with "
    line += f"{len(annotations.classes)} classes; left out: {annotations.without_boxes} training "
    line += f"images without a box, {annotations.empty_boxes} boxes without an area"
    LineWriter(sys.stdout).write_lines([line])


def _make_librispeech(source: Path, out: Path, options: MakeLibrispeechFlags) -> None:
    shards = {"train": options.train_shards, "validation": options.validation_shards}
    with _quietly_on_cpu():
        from cnnbench.data.librispeech import read_transcripts, write_librispeech

        transcripts = read_transcripts(source, options.validation)
        write_librispeech(transcripts, out, shards, options.seed)
    LineWriter(sys.stdout).write_lines([f"{_counts_text(out, transcripts)} utterances"])


def _make_ratings(source: Path, out: Path, options: MakeRatingsFlags) -> None:
    made = write_ratings_files(source, out, options.negatives, options.min_ratings, options.seed)
    line = f"{out}: {made.ratings} ratings of {made.items} items by {made.users} users"
    line += f"; {made.left_out} users left out"
    LineWriter(sys.stdout).write_lines([line])


def _check_dataset(folder: str, options: CheckFlags) -> None:
    plugins.load_plugins_of_flags(vars(options))
    named = find_dataset(options.data_name, None) if options.data_name else None
    try:
        dataset = named or detect_dataset(folder)
        files_of = dataset.files_by_subset(folder)
    except FlagError as error:
        raise UsageError(f"{folder}: {error.reason}") from error
    lines, defects = [f"{folder}: {dataset.name}"], []
    for subset in SUBSETS:
        files = files_of.get(subset)
        if not files:
            lines.append(f"{subset}: no files")
            continue
        with _quietly_on_cpu():
            findings = dataset.check(files, options.num_classes or dataset.num_classes)
        if not findings.records and not findings.defects:
            findings.defects.append(f"{files[0].parent}: the {subset} files contain no records")
        size = sum(path.stat().st_size for path in files)
        records = count_text(findings.records, "valid record", "valid records")
        lines.append(f"{subset}: {records} in {count_text(files, 'file', 'files')}, {size:,} bytes")
        lines += [
            f"  {line}"
            for line in (
                *findings.details,
                *dataset.file_notices(subset, folder),
            )
        ]
        defects += findings.defects
    LineWriter(sys.stdout).write_lines([*lines, *(f"defect: {defect}" for defect in defects)])
    if defects:
        noun = "defect" if len(defects) == 1 else "defects"
        raise DataError(f"{len(defects)} {noun}, the first: {defects[0]}")


def _quietly_on_cpu() -> contextlib.AbstractContextManager[None]:
    """Context manager: TensorFlow uses no GPU, and native libraries print nothing to stderr.

    Their messages are printed only after an unexpected exception.
    """
    if "tensorflow" not in sys.modules:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    return filtered_stderr(
        lambda text, error: (
            ""
            if error is None or isinstance(error, (UsageError, BenchmarkError, KeyboardInterrupt))
            else text
        )
    )


_ACTIONS: dict[str, tuple[type, tuple[str, ...], type, Callable[..., None]]] = {
    "make-imagenet": (MakeImagenetFlags, ("DIR", "OUT"), Path, _make_imagenet),
    "make-coco": (MakeCocoFlags, ("SOURCE", "OUT"), Path, _make_coco),
    "make-librispeech": (MakeLibrispeechFlags, ("SOURCE", "OUT"), Path, _make_librispeech),
    "make-ratings": (MakeRatingsFlags, ("SOURCE", "OUT"), Path, _make_ratings),
    "check": (CheckFlags, ("DIR",), str, _check_dataset),
}
"""For each action: flags, names of the arguments, their type, and the function to run."""


def argument_completions() -> tuple[str, ...]:
    """The actions of ``cnnbench data``, which shells propose as its first argument."""
    return tuple(_ACTIONS)
