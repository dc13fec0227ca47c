"""Folders of data sets: checks for defects, reads files, and writes new data sets."""

from __future__ import annotations

import contextlib
import functools
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

from cnnbench.base.files import read_file, read_text
from cnnbench.base.locks import SCRATCH, FolderLock, TemporaryFolder
from cnnbench.base.urls import UrlPath, local_or_url_path
from cnnbench.errors import DataError, FlagError, PathError, UsageError, informative_line

# Results of checking records (without TensorFlow)


class RecordDefect(ValueError):
    """Raised for a record that cannot be used. Messages show its text after "FILE: record N: "."""


@dataclass
class Findings:
    """Result of checking the files of a data set: the number of valid records, lines with
    statistics about them, and the defects.

    The text of a defect names the file and the record.
    """

    records: int = 0
    details: list[str] = field(default_factory=list)
    defects: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ImageFacts:
    """A valid record with a labelled image: class, size in pixels and bytes, number of boxes."""

    label: int
    height: int
    width: int
    stored_bytes: int
    boxes: int = 0


class ImageTally:
    """Collects statistics of labelled images."""

    def __init__(self) -> None:
        self._labels: Counter[int] = Counter()
        self._heights: set[int] = set()
        self._widths: set[int] = set()
        self._bytes = 0
        self._boxes = 0

    def add(self, facts: ImageFacts) -> None:
        """Adds a valid record to the statistics."""
        self._labels[facts.label] += 1
        self._heights.add(facts.height)
        self._widths.add(facts.width)
        self._bytes += facts.stored_bytes
        self._boxes += facts.boxes

    @property
    def labels(self) -> Collection[int]:
        """The labels that occur."""
        return self._labels.keys()

    def lines(self) -> list[str]:
        """Formats the statistics as lines of text; empty if no record was added."""
        if not self._labels:
            return []
        per_class = self._labels.values()
        mean_bytes = self._bytes / self._labels.total()
        return [
            f"labels: {len(self._labels)} different from {min(self._labels)} to "
            f"{max(self._labels)}, {min(per_class)} to {max(per_class)} records each",
            f"images: {min(self._heights)} to {max(self._heights)} high, {min(self._widths)} to "
            f"{max(self._widths)} wide, {mean_bytes:,.0f} bytes on average, {self._boxes} boxes",
        ]


# Reading files of data sets, with error messages that name the flag or the file

UNFINISHED = "unfinished-"
"""Prefix of the temporary folder for the files of a data set until all files are written."""

SUBSET_FOLDERS = {"train": ("train",), "validation": ("validation", "val")}
"""Subfolders that may contain the files of a subset, in order of preference."""

# Maximum number of files in the cache; ImageNet has 1152 files.
_REMEMBERED = 4096


def os_error_text(error: OSError) -> str:
    """Returns the operating system's message for an error, without error number and path."""
    return error.strerror or str(error) or type(error).__name__


def find_unfinished(folder: Path) -> str:
    """Returns the name of a subfolder with files that an interrupted process left behind while it
    created a data set; "" if there is no such subfolder.
    """
    made = (path for path in folder.iterdir() if path.name.startswith(UNFINISHED))
    held = (path.name for path in made if (path / SCRATCH).is_file() and len([*path.iterdir()]) > 1)
    return min(held, default="")


def read_data_file(path: Path) -> bytes:
    """Reads a data file. DataError if the file cannot be read."""
    try:
        return path.read_bytes() if isinstance(path, UrlPath) else read_file(path)
    except PathError as error:
        raise DataError(str(error)) from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {os_error_text(error)}") from error


@contextlib.contextmanager
def converting_read_errors(data_dir: str) -> Iterator[None]:
    """Context manager for reading the directory of --data_dir. Raises FlagError if the directory is
    missing or cannot be read.
    """
    try:
        if not local_or_url_path(data_dir).is_dir():
            raise FlagError("data_dir", data_dir, "there is no such directory")
        yield
    except OSError as error:
        where = "" if error.filename in (None, data_dir) else f"{error.filename}: "
        problem = f"cannot be read: {where}{os_error_text(error)}"
        raise FlagError("data_dir", data_dir, problem) from error


def cache_by_file_version(count: Callable[[Path], int]) -> Callable[[Path], int]:
    """Caches the result of ``count`` for each file until the file changes, because a run counts the
    examples twice.
    """

    @functools.lru_cache(_REMEMBERED)
    def cached_count(path: Path, *version: int) -> int:
        del version
        return count(path)

    @functools.wraps(count)
    def count_unless_cached(path: Path) -> int:
        try:
            status = path.stat()
        except OSError:
            # If the file is missing or unreadable, `count` raises an error with a clear message.
            return count(path)
        version = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        return cached_count(path, *version)

    return count_unless_cached


# Writing a data set: either all files or none (without TensorFlow)

Item = TypeVar("Item")
Result = TypeVar("Result")


def write_dataset_files(
    out: Path,
    prefix: str,
    subsets: Mapping[str, Sequence[Item]],
    shards: Mapping[str, int],
    write: Callable[[Path, Sequence[Item]], Result],
    lines_by_extra_file: Mapping[str, Sequence[str]],
) -> list[Result]:
    """Writes the files ``PREFIX<subset>-*-of-*`` of a data set. Creates the folder if it does not
    exist.

    Files are written to a temporary folder inside ``out`` and moved when all are complete.
    Therefore an interrupted command leaves no incomplete data set.

    Args:
      shards: number of files for each subset. The numbers of items in the files differ by at most
        one. There are at most as many files as items.
      write: function that is called with the path of a file and the items for it.
      lines_by_extra_file: names and lines of additional files, which may already exist.

    Returns:
      The result of `write` for each file.
    """
    results: list[Result] = []
    places = ("", *(f"{name}/" for names in SUBSET_FOLDERS.values() for name in names))
    patterns = [f"{place}{prefix}{subset}-*-of-*" for subset in SUBSET_FOLDERS for place in places]
    with temporary_output_folder(out, patterns) as folder:
        written: list[Path] = []
        for subset, items in subsets.items():
            count = min(shards[subset], len(items))
            for i in range(count):
                begin, end = (len(items) * k // count for k in (i, i + 1))
                written.append(folder / f"{prefix}{subset}-{i:05d}-of-{count:05d}")
                results.append(write(written[-1], items[begin:end]))
        for name, lines in lines_by_extra_file.items():
            written.append(folder / name)
            with converting_write_errors(folder / name):
                text = "".join(f"{line}\n" for line in lines)
                (folder / name).write_text(text, encoding="utf-8", errors="surrogateescape")
        move_all_or_none(written, out, replaceable_names=lines_by_extra_file)
    return results


@contextlib.contextmanager
def temporary_output_folder(out: Path, patterns: Sequence[str]) -> Iterator[Path]:
    """Context manager that creates the folder ``out`` and, in it, a temporary folder that is
    removed at the end.

    ``out`` is locked inside the block. It must be writable, and no file in it may have a name that
    matches `patterns`. Files that killed processes have left in ``out`` are removed.
    """
    with contextlib.ExitStack() as stack:
        try:
            out.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FolderLock(out))
            existing = min(
                (path for pattern in patterns for path in out.glob(pattern)), default=None
            )
            if existing:
                state = (
                    "an unfinished data set" if find_unfinished(out) else existing.relative_to(out)
                )
                raise UsageError(
                    f"{out}: contains {state} already; remove it or name another folder"
                )
            scratch = stack.enter_context(TemporaryFolder(UNFINISHED, out))
        except FileExistsError as error:
            raise UsageError(f"{out}: is not a folder") from error
        except OSError as error:
            raise UsageError(f"{out}: cannot be written to: {os_error_text(error)}") from error
        yield scratch.path


def move_all_or_none(
    paths: Sequence[Path], out: Path, replaceable_names: Collection[str] = ()
) -> None:
    """Moves either all files to ``out`` or none. Only the files that `replaceable_names` names may
    already exist there.

    Files that may replace existing files are moved last.
    """
    with converting_write_errors(out):
        moved: list[Path] = []
        try:
            for path in paths:
                placed = path.replace(out / path.name)
                if path.name not in replaceable_names:
                    moved.append(placed)
        except BaseException:
            for path in moved:
                with contextlib.suppress(OSError):
                    path.unlink()
            raise


@contextlib.contextmanager
def converting_write_errors(path: Path, *others: type[Exception]) -> Iterator[None]:
    """Context manager that turns errors from writing a file into DataError.

    For errors other than OSError, the reason is the text after the last "; ".
    """
    try:
        yield
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {os_error_text(error)}") from error
    except others as error:
        raise DataError(
            f"{path}: cannot be written: {informative_line(error).split('; ')[-1]}"
        ) from error


# Search for labelled images in a folder with one subfolder per class (without TensorFlow)

SUFFIXES = (".jpg", ".jpeg", ".png")


class ImageClass(NamedTuple):
    """A class of labelled images: its label (from 1), the name of its folder, its description."""

    label: int
    name: str
    text: str


class ImageFolder(NamedTuple):
    """The images that `find_images` found. For each subset ("train", "validation"): the files with
    their classes, in random order.

    `ignored` contains folders without images, images outside class folders, and other files in
    class folders. Names that start with a dot or an @, and ``__MACOSX``, are not included.
    """

    classes: tuple[ImageClass, ...]
    subsets: dict[str, list[tuple[Path, ImageClass]]]
    ignored: tuple[Path, ...] = ()


def find_images(
    folder: Path, labels_file: Path | None, validation_fraction: float, seed: int
) -> ImageFolder:
    """Finds the labelled images in a folder with one subfolder per class.

    The folder contains either one subfolder per class, or subfolders ``train`` and ``validation``
    (or ``val``) with one subfolder per class. In the first case, a share of every class is used for
    validation.

    Args:
      labels_file: file with one line per class: the name of the class folder, optionally followed
        by spaces and a description. Line k (from 1) is label k. If the first line is
        ``background``, as make_imagenet writes it, this line is label 0. Without a file, labels
        follow the sorted folder names.
      validation_fraction: share of every class for validation, in [0, 1); the number of images is
        rounded.
      seed: random seed for the validation images and for the order.
    """
    ignored: list[Path] = []
    try:
        if not folder.is_dir():
            raise UsageError(f"{folder}: there is no such folder")
        roots = _subset_folders(folder)
        folders_by_split = {split: _class_folders(root, ignored) for split, root in roots.items()}
    except OSError as error:
        raise UsageError(f"{error.filename or folder}: {os_error_text(error)}") from error
    names = sorted({path.name for folders in folders_by_split.values() for path in folders})
    for name in names:
        check_class_name(f"{folder}: class folder", name)
    numbered = [ImageClass(label, name, name) for label, name in enumerate(names, start=1)]
    classes = _read_labels(labels_file) if labels_file else numbered
    by_name = {c.name: c for c in classes}
    for name in names:
        if name not in by_name:
            raise UsageError(f"--labels={labels_file}: class folder {name!r} is not listed")
    chosen = random.Random(seed)
    subsets: dict[str, list[tuple[Path, ImageClass]]] = {name: [] for name in SUBSET_FOLDERS}
    for split, folders in folders_by_split.items():
        for class_folder, images in folders.items():
            files = [(path, by_name[class_folder.name]) for path in images]
            chosen.shuffle(files)
            held_back = 0 if len(roots) > 1 else round(len(files) * validation_fraction)
            subsets["validation"] += files[:held_back]
            subsets[split] += files[held_back:]
    if not any(subsets.values()):
        raise UsageError(f"{folder}: its sub-folders contain no images ({', '.join(SUFFIXES)})")
    for files in subsets.values():
        chosen.shuffle(files)
    return ImageFolder(tuple(classes), subsets, tuple(ignored))


def _subset_folders(folder: Path) -> dict[str, Path]:
    roots = {
        split: folder / name
        for split, names in SUBSET_FOLDERS.items()
        for name in names
        if (folder / name).is_dir() and _class_folders(folder / name, [])
    }
    return roots if len(roots) == len(SUBSET_FOLDERS) else {"train": folder}


def _class_folders(root: Path, ignored: list[Path]) -> dict[Path, list[Path]]:
    images_by_folder = {}
    for folder in _visible_entries(root):
        if folder.is_dir():
            entries = _visible_entries(folder)
            images = [path for path in entries if _is_image(path)]
            if images:
                images_by_folder[folder] = images
                ignored += [path for path in entries if not _is_image(path)]
            else:
                ignored.append(folder)
        elif _is_image(folder):
            ignored.append(folder)
    return images_by_folder


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and path.is_file()


def _visible_entries(folder: Path) -> list[Path]:
    """Returns the sorted entries of a folder, without files of operating systems and servers."""
    return sorted(
        path for path in folder.iterdir() if path.name[0] not in ".@" and path.name != "__MACOSX"
    )


def check_class_name(what: str, name: str) -> None:
    """Raises UsageError if a class name cannot be written as a line of labels.txt."""
    # Surrogates are allowed: in file names, they stand for bytes that are not UTF-8.
    if not "".join(c for c in name if not "\udc80" <= c <= "\udcff").isprintable():
        raise UsageError(f"{what} {name!r}: its name has characters that are not printable")


def _read_labels(path: Path) -> list[ImageClass]:
    lines = [line for line in read_text(path, flag="labels").split("\n") if line.strip()]
    classes: list[ImageClass] = []
    if lines and lines[0].split()[0] == "background":
        lines = lines[1:]
    for line in lines:
        name, *words = line.split()
        text = " ".join(words) or name
        check_class_name(f"--labels={path}:", " ".join([name, *words]))
        if any(c.name == name for c in classes):
            raise UsageError(f"--labels={path}: {name!r} is listed twice")
        classes.append(ImageClass(len(classes) + 1, name, text))
    return classes
