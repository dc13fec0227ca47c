"""Search for labelled images in a folder of class folders. No TensorFlow."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from cnnbench.base.reading import read_text
from cnnbench.data.folder import SUBSET_FOLDERS, reason
from cnnbench.errors import UsageError

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
