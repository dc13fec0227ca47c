"""Folders of data sets: what they lack, reading them, and writing them."""

from __future__ import annotations

import contextlib
import functools
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from cnnbench.base.files import SCRATCH, FolderLock, Scratch, UrlPath, place, read_file, read_text
from cnnbench.errors import DataError, FlagError, PathError, UsageError, first_line

# Findings of a record check. No TensorFlow.


class RecordDefect(ValueError):
    """A defect of a record; the text completes "FILE: record N: "."""


@dataclass
class Findings:
    """Valid records of a subset and lines about them; defects name file and record."""

    records: int = 0
    details: list[str] = field(default_factory=list)
    defects: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ImageFacts:
    """Facts of a valid record of a labelled image: class, size in pixels, number of boxes."""

    label: int
    height: int
    width: int
    stored_bytes: int
    boxes: int = 0


class ImageTally:
    """Statistics of labelled images."""

    def __init__(self) -> None:
        self._labels: Counter[int] = Counter()
        self._heights: set[int] = set()
        self._widths: set[int] = set()
        self._bytes = 0
        self._boxes = 0

    def add(self, facts: ImageFacts) -> None:
        """Counts a valid record."""
        self._labels[facts.label] += 1
        self._heights.add(facts.height)
        self._widths.add(facts.width)
        self._bytes += facts.stored_bytes
        self._boxes += facts.boxes

    def lines(self) -> list[str]:
        """The statistics as text; none without a record."""
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


# Folders and files of data sets: error messages and cached counts.

UNFINISHED = "unfinished-"
"""Prefix of the folder that holds the files until the whole data set is written."""

SUBSET_FOLDERS = {"train": ("train",), "validation": ("validation", "val")}
"""Folders that may hold the files of a subset, in the order of their precedence."""

# Number of files; ImageNet has 1152.
_REMEMBERED = 4096


def reason(error: OSError) -> str:
    """The system's error message, without number and path."""
    return error.strerror or str(error) or type(error).__name__


def unfinished_in(folder: Path) -> str:
    """Name of a folder inside with files of a data set that was not finished; "" for none."""
    made = (path for path in folder.iterdir() if path.name.startswith(UNFINISHED))
    held = (path.name for path in made if (path / SCRATCH).is_file() and len([*path.iterdir()]) > 1)
    return min(held, default="")


def content_of(path: Path) -> bytes:
    """The content of a file of examples; DataError if it cannot be read."""
    try:
        return path.read_bytes() if isinstance(path, UrlPath) else read_file(path)
    except PathError as error:
        raise DataError(str(error)) from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {reason(error)}") from error


@contextlib.contextmanager
def readable(data_dir: str) -> Iterator[None]:
    """A block that reads a directory; FlagError if it is missing, or for an OSError inside."""
    try:
        if not place(data_dir).is_dir():
            raise FlagError("data_dir", data_dir, "there is no such directory")
        yield
    except OSError as error:
        where = "" if error.filename in (None, data_dir) else f"{error.filename}: "
        problem = f"cannot be read: {where}{reason(error)}"
        raise FlagError("data_dir", data_dir, problem) from error


def once_per_content(count: Callable[[Path], int]) -> Callable[[Path], int]:
    """Caches ``count`` in this process until the file changes: a run counts examples twice."""

    @functools.lru_cache(_REMEMBERED)
    def remembered(path: Path, *version: int) -> int:
        del version
        return count(path)

    @functools.wraps(count)
    def look(path: Path) -> int:
        try:
            status = path.stat()
        except OSError:
            return count(path)  # raises the error for the file
        version = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        return remembered(path, *version)

    return look


# Output of data sets: all files or none. No TensorFlow.

Item = TypeVar("Item")
Result = TypeVar("Result")


def write_set(
    out: Path,
    prefix: str,
    subsets: Mapping[str, Sequence[Item]],
    shards: Mapping[str, int],
    write: Callable[[Path, Sequence[Item]], Result],
    labels: Mapping[str, Sequence[str]],
) -> list[Result]:
    """Writes the files ``PREFIX<subset>-*-of-*`` of a data set to a folder, created if missing.

    The files are moved from a temporary folder inside ``out`` when all are complete, so that an
    interrupted run leaves nothing that looks like a data set.

    Args:
      shards: number of files of each subset, which are equally long up to one item; there are never
        more files than items.
      write: called with the path of each file and its items.
      labels: names and lines of further files, which may be there already.

    Returns:
      What `write` returned for each file.
    """
    results: list[Result] = []
    places = ("", *(f"{name}/" for names in SUBSET_FOLDERS.values() for name in names))
    patterns = [f"{place}{prefix}{subset}-*-of-*" for subset in SUBSET_FOLDERS for place in places]
    with unfinished_folder(out, patterns) as folder:
        written: list[Path] = []
        for subset, items in subsets.items():
            count = min(shards[subset], len(items))
            for i in range(count):
                begin, end = (len(items) * k // count for k in (i, i + 1))
                written.append(folder / f"{prefix}{subset}-{i:05d}-of-{count:05d}")
                results.append(write(written[-1], items[begin:end]))
        for name, lines in labels.items():
            written.append(folder / name)
            with writing(folder / name):
                text = "".join(f"{line}\n" for line in lines)
                (folder / name).write_text(text, encoding="utf-8", errors="surrogateescape")
        move(written, out, replacing=labels)
    return results


@contextlib.contextmanager
def unfinished_folder(out: Path, patterns: Sequence[str]) -> Iterator[Path]:
    """Makes ``out`` and a temporary folder in it for the files; removes the latter at the end.

    ``out`` is locked meanwhile. It must be writable and hold no files of such a data set, which
    `patterns` name. What killed processes have left in it is removed.
    """
    with contextlib.ExitStack() as stack:
        try:
            out.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FolderLock(out))
            existing = min((path for one in patterns for path in out.glob(one)), default=None)
            if existing:
                state = (
                    "an unfinished data set" if unfinished_in(out) else existing.relative_to(out)
                )
                raise UsageError(f"{out}: holds {state} already; remove it or name another folder")
            scratch = stack.enter_context(Scratch(UNFINISHED, out))
        except FileExistsError as error:
            raise UsageError(f"{out}: is not a folder") from error
        except OSError as error:
            raise UsageError(f"{out}: cannot be written to: {reason(error)}") from error
        yield scratch.path


def move(paths: Sequence[Path], out: Path, replacing: Collection[str] = ()) -> None:
    """Moves all files to ``out``, or none; only those of the names in `replacing` may exist there.

    Those that may replace others come last.
    """
    with writing(out):
        moved: list[Path] = []
        try:
            for path in paths:
                placed = path.replace(out / path.name)
                if path.name not in replacing:
                    moved.append(placed)
        except BaseException:
            for path in moved:
                with contextlib.suppress(OSError):
                    path.unlink()
            raise


@contextlib.contextmanager
def writing(path: Path, *others: type[Exception]) -> Iterator[None]:
    """A block in which only writing can fail; raises DataError from OSError and other errors.

    The text of the others ends with "; REASON".
    """
    try:
        yield
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {reason(error)}") from error
    except others as error:
        raise DataError(
            f"{path}: cannot be written: {first_line(error).split('; ')[-1]}"
        ) from error


# Search for labelled images in a folder of class folders. No TensorFlow.

SUFFIXES = (".jpg", ".jpeg", ".png")


@dataclass(frozen=True)
class ImageClass:
    """A class: label (from 1), folder name, description."""

    label: int
    name: str
    text: str


@dataclass(frozen=True)
class ImageFolder:
    """Files and their classes by subset ("train", "validation"), in a random order.

    `ignored` has folders without images, images outside of class folders, and other files in these,
    but no names that start with a dot or an @, and not ``__MACOSX``.
    """

    classes: tuple[ImageClass, ...]
    subsets: dict[str, list[tuple[Path, ImageClass]]]
    ignored: tuple[Path, ...] = ()


def scan(
    folder: Path, labels_file: Path | None, validation_fraction: float, seed: int
) -> ImageFolder:
    """Finds the images of a folder.

    The folder holds one folder per class, or folders ``train`` and ``validation`` (or ``val``)
    that do. In the first case a share of every class is set aside for validation.

    Args:
      labels_file: per line the name of a class folder, optionally followed by blanks and a
        description; line k is label k. A first line ``background``, as make_imagenet writes it, is
        label 0. Without a file, labels follow the sorted folder names.
      validation_fraction: in [0, 1); share of every class, rounded.
      seed: seed of the choice of that share and of the order.
    """
    ignored: list[Path] = []
    try:
        if not folder.is_dir():
            raise UsageError(f"{folder}: there is no such folder")
        roots = _split_roots(folder)
        found = {split: _class_folders(root, ignored) for split, root in roots.items()}
    except OSError as error:
        raise UsageError(f"{error.filename or folder}: {reason(error)}") from error
    names = sorted({path.name for folders in found.values() for path in folders})
    for name in names:
        check_name(f"{folder}: class folder", name)
    numbered = [ImageClass(label, name, name) for label, name in enumerate(names, start=1)]
    classes = _read_labels(labels_file) if labels_file else numbered
    by_name = {c.name: c for c in classes}
    for name in names:
        if name not in by_name:
            raise UsageError(f"--labels={labels_file}: class folder {name!r} is not listed")
    chosen = random.Random(seed)
    subsets: dict[str, list[tuple[Path, ImageClass]]] = {name: [] for name in SUBSET_FOLDERS}
    for split, folders in found.items():
        for class_folder, images in folders.items():
            files = [(path, by_name[class_folder.name]) for path in images]
            chosen.shuffle(files)
            held_back = 0 if len(roots) > 1 else round(len(files) * validation_fraction)
            subsets["validation"] += files[:held_back]
            subsets[split] += files[held_back:]
    if not any(subsets.values()):
        raise UsageError(f"{folder}: its sub-folders hold no images ({', '.join(SUFFIXES)})")
    for files in subsets.values():
        chosen.shuffle(files)
    return ImageFolder(tuple(classes), subsets, tuple(ignored))


def _split_roots(folder: Path) -> dict[str, Path]:
    roots = {
        split: folder / name
        for split, names in SUBSET_FOLDERS.items()
        for name in names
        if (folder / name).is_dir() and _class_folders(folder / name, [])
    }
    return roots if len(roots) == len(SUBSET_FOLDERS) else {"train": folder}


def _class_folders(root: Path, ignored: list[Path]) -> dict[Path, list[Path]]:
    found = {}
    for folder in _visible(root):
        if folder.is_dir():
            entries = _visible(folder)
            images = [path for path in entries if _is_image(path)]
            if images:
                found[folder] = images
                ignored += [path for path in entries if not _is_image(path)]
            else:
                ignored.append(folder)
        elif _is_image(folder):
            ignored.append(folder)
    return found


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and path.is_file()


def _visible(folder: Path) -> list[Path]:
    """Entries of a folder, sorted, without files of operating systems and file servers."""
    return sorted(
        path for path in folder.iterdir() if path.name[0] not in ".@" and path.name != "__MACOSX"
    )


def check_name(what: str, name: str) -> None:
    """Raises UsageError for class names that cannot be a line of labels.txt."""
    # Bytes that are not UTF-8 are in Python's names as surrogates.
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
        check_name(f"--labels={path}:", " ".join([name, *words]))
        if any(c.name == name for c in classes):
            raise UsageError(f"--labels={path}: {name!r} is listed twice")
        classes.append(ImageClass(len(classes) + 1, name, text))
    return classes
