"""Checkpoint files of a folder: complete ones, obsolete ones, remains of killed processes.

A checkpoint of global step N is ``model.ckpt-N.index`` and its data files; TensorFlow moves the
index to its place last. These files alone determine which checkpoints exist. The file
``checkpoint``, in which other programs look for the newest one, is written and never read: a run
must not start over because that file is torn, stale or gone. No TensorFlow here.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from pathlib import Path

from cnnbench.base.urls import is_url, place
from cnnbench.errors import BenchmarkError
from cnnbench.records.files import remove_abandoned, write_whole

NAME = "model.ckpt"
STATE = "checkpoint"
_PART = re.compile(rf"{re.escape(NAME)}-(\d+)\.(?:index|data-(\d+)-of-(\d+))")
_ANY_PART = re.compile(r".*\.(?:index|data-\d+-of-\d+)")
_PREFIX = re.compile(r"ckpt-\d+$")
_TABLE_END = 0xDB4775248B80FB57.to_bytes(8, "little")  # an index is a table of LevelDB
# A folder that TensorFlow writes in before it moves files, and a file of TensorFlow that waits to
# take the place of `checkpoint`.
_LEFTOVER = re.compile(rf"{re.escape(NAME)}-\d+_temp(_[0-9a-f]{{32}})?|{STATE}\.tmp[0-9a-f]{{32}}")


def is_prefix(path: str) -> bool:
    """Whether a path names one checkpoint (``…/model.ckpt-120``) and not a folder of them."""
    return _PREFIX.search(path) is not None


def latest(path: str) -> str | None:
    """Prefix of the newest complete checkpoint; None if there are no parts of any checkpoint.

    Args:
      path: path of a folder, or prefix of one checkpoint.

    Raises:
      BenchmarkError: the folder cannot be read, or it holds parts of checkpoints only, or those
        of another program.
    """
    try:
        if is_prefix(path):
            return path if place(f"{path}.index").exists() else None
        complete, _, parts = _look_into(place(path))
    except OSError as error:
        raise BenchmarkError(f"{path} cannot be read: {error.strerror}") from error
    if complete:
        return str(place(path) / f"{NAME}-{complete[-1]}")
    if parts:
        raise BenchmarkError(
            f"{path} holds no complete checkpoint {NAME}-*, but {parts[0]}; restore the "
            "missing files or name another folder"
        )
    return None


def holds(folder: str, step: int) -> bool:
    """Whether a complete checkpoint of that step is there."""
    complete, _, _ = _look_into(place(folder))
    return step in complete


def tidy(folder: str, keep: int) -> None:
    """Removes obsolete files after a checkpoint has been written.

    Deletes all complete checkpoints but the newest `keep` (0 keeps all), torn ones before these,
    and what killed runs left behind, nothing of other programs; writes the file ``checkpoint``.
    """
    clean(folder)
    complete, torn, _ = _look_into(place(folder))
    kept = complete[-keep:]
    for step in (*complete, *torn):
        # tf_cnn_benchmarks, whose checkpoints a training can begin with, writes a .meta file too.
        if step < kept[0] and not (place(folder) / f"{NAME}-{step}.meta").exists():
            # The index first: without it the rest is no checkpoint, whenever the process is killed.
            (place(folder) / f"{NAME}-{step}.index").unlink(missing_ok=True)
            for path in place(folder).iterdir():
                if path.name.startswith(f"{NAME}-{step}.data-"):
                    path.unlink(missing_ok=True)
    lines = [f'model_checkpoint_path: "{NAME}-{kept[-1]}"']
    lines += [f'all_model_checkpoint_paths: "{NAME}-{step}"' for step in kept]
    write_whole(place(folder) / STATE, ("\n".join(lines) + "\n").encode("ascii"))


def clean(folder: str) -> None:
    """Removes what runs that were killed while saving left in a folder.

    To be called by its only writer, see `cnnbench.base.lock`: files that another writer is saving
    look the same.
    """
    if is_url(folder):
        return
    remove_abandoned(Path(folder))
    with contextlib.suppress(FileNotFoundError):
        for path in Path(folder).iterdir():
            if _LEFTOVER.fullmatch(path.name):
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)


def _look_into(folder: Path) -> tuple[list[int], list[int], list[str]]:
    """Steps of complete and of torn checkpoints, ascending, and names of all parts of any."""
    try:
        names = sorted(path.name for path in folder.iterdir())
    except FileNotFoundError:
        return [], [], []
    indexed: set[int] = set()
    data: dict[int, set[tuple[int, int]]] = {}
    for match in filter(None, map(_PART.fullmatch, names)):
        step = int(match[1])
        if match[2] is None:
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                # TensorFlow writes an index in place, piece by piece.
                if (folder / match[0]).read_bytes().endswith(_TABLE_END):
                    indexed.add(step)
        else:
            data.setdefault(step, set()).add((int(match[2]), int(match[3])))
    complete = {
        step
        for step in indexed & data.keys()
        if all(len(data[step]) == count for _, count in data[step])
    }
    torn = (indexed | data.keys()) - complete
    return sorted(complete), sorted(torn), list(filter(_ANY_PART.fullmatch, names))
