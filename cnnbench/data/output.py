"""Output of data sets: all files or none. No TensorFlow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from cnnbench.base.lock import FolderLock, Scratch
from cnnbench.data.folder import SUBSET_FOLDERS, UNFINISHED, reason, unfinished_in
from cnnbench.errors import DataError, UsageError, first_line

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
