"""``cnnbench data``: makes data sets and checks them."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from cnnbench.data.dataset import find_dataset
from cnnbench.data.image_folder import scan
from cnnbench.data.open import detect, find_subsets
from cnnbench.errors import BenchmarkError, DataError, ExitCode, FlagError, UsageError
from cnnbench.runtime.native_log import filtered_stderr
from cnnbench.text.terminal import LineWriter

_CHECKED = ("imagenet", "cifar10")


class _Parser(argparse.ArgumentParser):
    """Wrong arguments are a UsageError, one line, instead of usage text and an exit."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}; see {self.prog} --help")


def main(argv: Sequence[str]) -> int:
    """Runs ``make-imagenet`` or ``check``.

    Raises:
      UsageError: wrong arguments.
      DataError: an image that cannot be read, or defects in a checked data set.
    """
    try:
        options = _parser().parse_args(argv)
    except SystemExit as stop:  # argparse ends the program after printing help
        return int(stop.code or 0)
    return int(options.action(options))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="cnnbench data",
        description="Makes and checks data sets.",
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    _add_make_imagenet(actions)
    _add_check(actions)
    return parser


def _add_make_imagenet(actions: argparse._SubParsersAction[_Parser]) -> None:
    make = actions.add_parser(
        "make-imagenet",
        help="turn a folder of images into TFRecord files",
        description="Turns DIR/CLASS/*.jpg|jpeg|png, or DIR/train/CLASS/* and DIR/validation/"
        "CLASS/*, into TFRecord files with the keys of ImageNet, and writes labels.txt. "
        "Classes are numbered from 1 in order of their folders' names; 0 is the background. "
        "PNGs, and grey or CMYK JPEGs, become RGB JPEGs of quality 100.",
        allow_abbrev=False,
    )
    make.add_argument("dir", metavar="DIR", type=Path, help="folder of class folders")
    make.add_argument("out", metavar="OUT", type=Path, help="where the files go")
    make.add_argument("--train_shards", type=int, default=8, help="training files [8]")
    make.add_argument("--validation_shards", type=int, default=2, help="validation files [2]")
    make.add_argument(
        "--validation_fraction",
        type=float,
        default=0.1,
        help="share of every class set aside for validation, unless DIR has it apart [0.1]",
    )
    make.add_argument("--seed", type=int, default=1234, help="decides split and order [1234]")
    make.add_argument(
        "--labels",
        type=Path,
        metavar="FILE",
        help="class folders in order of their labels, one per line, each with the class in "
        "words behind it if you like",
    )
    make.set_defaults(action=_make_imagenet)


def _add_check(actions: argparse._SubParsersAction[_Parser]) -> None:
    check = actions.add_parser(
        "check",
        help="read every record of a data set and print statistics",
        description="Reads every record of an ImageNet or CIFAR-10 directory: checksums, keys, "
        "labels, images. Prints statistics, and a line per defect that names file and record. "
        "Exit code 4 if there are defects.",
        allow_abbrev=False,
    )
    check.add_argument("dir", metavar="DIR", help="directory of the data set")
    check.add_argument(
        "--data_name", help=f"{' or '.join(_CHECKED)}; told from the files if absent"
    )
    check.add_argument("--num_classes", type=int, help="labels must be below; 1001 or 11 if absent")
    check.set_defaults(action=_check)


def _make_imagenet(options: argparse.Namespace) -> int:
    for name in ("train_shards", "validation_shards"):
        if getattr(options, name) < 1:
            raise FlagError(name, getattr(options, name), "must be at least 1")
    if not 0 <= options.validation_fraction < 1:
        raise FlagError(
            "validation_fraction", options.validation_fraction, "must be at least 0 and below 1"
        )
    found = scan(options.dir, options.labels, options.validation_fraction, options.seed)
    shards = {"train": options.train_shards, "validation": options.validation_shards}
    with _tensorflow():
        from cnnbench.data.make_imagenet import make_imagenet

        made = make_imagenet(found, options.out, shards)
    line = f"{options.out}: {made.images['train']} training and {made.images['validation']} "
    line += f"validation images of {made.classes} classes, {made.reencoded} of them re-encoded"
    LineWriter(sys.stdout).lines([line])
    return ExitCode.OK


def _check(options: argparse.Namespace) -> int:
    if options.data_name is not None and options.data_name not in _CHECKED:
        raise FlagError("data_name", options.data_name, f"must be one of {', '.join(_CHECKED)}")
    if options.num_classes is not None and options.num_classes < 1:
        raise FlagError("num_classes", options.num_classes, "must be at least 1")
    dataset = find_dataset(options.data_name, None) if options.data_name else detect(options.dir)
    find_subsets(options.dir, dataset)
    with _tensorflow():
        from cnnbench.data.check import check

        reports = check(options.dir, dataset, options.num_classes or dataset.num_classes)
    defects = [defect for report in reports for defect in report.defects]
    lines = [f"{options.dir}: {dataset.name}"]
    lines += [line for report in reports for line in report.lines()]
    lines += [f"defect: {defect}" for defect in defects]
    LineWriter(sys.stdout).lines(lines)
    if defects:
        noun = "defect" if len(defects) == 1 else "defects"
        raise DataError(f"{len(defects)} {noun}, the first: {defects[0]}")
    return ExitCode.OK


def _tensorflow() -> contextlib.AbstractContextManager[None]:
    """A block in which TensorFlow works on the host only, with standard error held back.

    The errors of this command name file and record, so messages of native libraries are
    printed only after an unexpected exception.
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
