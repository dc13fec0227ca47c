"""Files in a checkpoint folder: complete checkpoints, old ones, and remains of killed processes.

A checkpoint of global step N is ``model.ckpt-N.index`` and its data files; TensorFlow renames the
index to its final name last. Only the index and the data files determine which checkpoints exist.
The file ``checkpoint``, in which other programs look for the newest checkpoint, is written and
never read: a run must not start over because that file is incomplete, outdated or missing. This
module does not import TensorFlow.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from pathlib import Path

from cnnbench.base.urls import is_url, local_or_url_path
from cnnbench.errors import BenchmarkError
from cnnbench.records.files import remove_abandoned_files, write_atomically

NAME = "model.ckpt"


STATE = "checkpoint"


_PART = re.compile(rf"{re.escape(NAME)}-(\d+)\.(?:index|data-(\d+)-of-(\d+))")


_ANY_PART = re.compile(r".*\.(?:index|data-\d+-of-\d+)")


_PREFIX = re.compile(r"ckpt-\d+$")


# A complete index file is a LevelDB table, which ends with these bytes.
_TABLE_END = 0xDB4775248B80FB57.to_bytes(8, "little")


# Names of temporary folders and files that TensorFlow leaves behind if its process is killed.
_LEFTOVER = re.compile(rf"{re.escape(NAME)}-\d+_temp(_[0-9a-f]{{32}})?|{STATE}\.tmp[0-9a-f]{{32}}")


def is_checkpoint_prefix(path: str) -> bool:
    """Whether a path names one checkpoint (``DIR/model.ckpt-120``) and not a folder."""
    return _PREFIX.search(path) is not None


def is_checkpoint_file(name: str) -> bool:
    """Whether a file of this name in a checkpoint folder belongs to a checkpoint or describes the
    folder's checkpoints.
    """
    return _ANY_PART.fullmatch(name) is not None or name in (STATE, _TRAINING)


def find_latest_checkpoint(path: str) -> str | None:
    """Finds the newest complete checkpoint and returns its path prefix; None if there are no
    checkpoint files.

    Args:
      path: path of a folder, or prefix of one checkpoint.

    Raises:
      BenchmarkError: the folder cannot be read, or contains only incomplete checkpoints, or those
        of another program.
    """
    try:
        if is_checkpoint_prefix(path):
            return path if local_or_url_path(f"{path}.index").exists() else None
        complete, _, parts = _find_checkpoints(local_or_url_path(path))
    except OSError as error:
        raise BenchmarkError(f"{path} cannot be read: {error.strerror}") from error
    if complete:
        return str(local_or_url_path(path) / f"{NAME}-{complete[-1]}")
    if parts:
        raise BenchmarkError(
            f"{path} contains no complete checkpoint {NAME}-*, but {parts[0]}; restore the "
            "missing files or name another folder"
        )
    return None


RUNNING = "running"


_TRAINING = "training_status"


def write_training_status(folder: str, status: str) -> None:
    """Writes the status of a training to its checkpoint folder, for evaluation runs that wait for
    new checkpoints.

    `status` is `RUNNING` or the status of a record; "" removes the file. If the folder is not
    writable, nothing changes.
    """
    path = local_or_url_path(folder) / _TRAINING
    with contextlib.suppress(OSError):
        if status:
            write_atomically(path, f"{status}\n".encode(), durable=False)
        else:
            path.unlink(missing_ok=True)


def read_training_status(folder: str) -> str:
    """Reads the status that `write_training_status` wrote to a folder; "" if there is none."""
    try:
        return (local_or_url_path(folder) / _TRAINING).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""


def has_checkpoint(folder: str, step: int) -> bool:
    """Whether a folder contains a complete checkpoint of the given global step."""
    complete, _, _ = _find_checkpoints(local_or_url_path(folder))
    return step in complete


def delete_old_checkpoints(folder: str, keep: int) -> None:
    """Deletes old checkpoints from a folder, after a new checkpoint has been written.

    Deletes all complete checkpoints except the newest `keep` (0 keeps all), older incomplete ones,
    and files of killed runs; never deletes files of other programs. Writes the file ``checkpoint``.
    """
    delete_incomplete_files(folder)
    place = local_or_url_path(folder)
    complete, torn, _ = _find_checkpoints(place)
    kept = complete[-keep:]
    for step in (*complete, *torn):
        # Checkpoints with a .meta file come from tf_cnn_benchmarks; they are kept.
        if step < kept[0] and not (place / f"{NAME}-{step}.meta").exists():
            # The index is deleted first: without an index, data files do not count as a checkpoint,
            # even after a kill.
            (place / f"{NAME}-{step}.index").unlink(missing_ok=True)
            for path in place.iterdir():
                if path.name.startswith(f"{NAME}-{step}.data-"):
                    path.unlink(missing_ok=True)
    lines = [f'model_checkpoint_path: "{NAME}-{kept[-1]}"']
    lines += [f'all_model_checkpoint_paths: "{NAME}-{step}"' for step in kept]
    write_atomically(place / STATE, ("\n".join(lines) + "\n").encode("ascii"))


def delete_incomplete_files(folder: str) -> None:
    """Deletes incomplete files in a checkpoint folder, which remain if a run is killed while it
    saves.

    Only the process with the folder's lock may call this (see `cnnbench.base.files`), because files
    that another writer is saving look the same.
    """
    if is_url(folder):
        return
    remove_abandoned_files(Path(folder))
    with contextlib.suppress(FileNotFoundError):
        for path in Path(folder).iterdir():
            if _LEFTOVER.fullmatch(path.name):
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)


def _find_checkpoints(folder: Path) -> tuple[list[int], list[int], list[str]]:
    """Returns the steps of complete checkpoints, the steps of incomplete checkpoints (both
    ascending), and the names of all checkpoint files in a folder.
    """
    try:
        names = sorted(path.name for path in folder.iterdir())
    except FileNotFoundError:
        return [], [], []
    indexed: set[int] = set()
    data: dict[int, set[tuple[int, int]]] = {}
    for match in filter(None, map(_PART.fullmatch, names)):
        step = int(match[1])
        if match[2] is None:
            # Another process may have removed the file since it was listed.
            with contextlib.suppress(FileNotFoundError):
                # TensorFlow writes an index in several pieces, so only its last bytes show whether
                # it is complete.
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
