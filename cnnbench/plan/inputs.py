"""Which files a run reads and writes, so that no other output replaces one of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cnnbench.base import plugins
from cnnbench.base.urls import is_url
from cnnbench.data.dataset import find_dataset
from cnnbench.errors import BenchmarkError, FlagError, UsageError
from cnnbench.flags import specs_of
from cnnbench.flags.groups.output import OutputParams
from cnnbench.records.checkpoints import is_checkpoint_file
from cnnbench.records.files import (
    IS_INPUT,
    OutputFile,
    are_same_file,
    refuse_shared_outputs,
)

_KERAS = "keras:"
_WRITTEN = tuple(spec.name for spec in specs_of(OutputParams) if spec.path == "file")


def refuse_files_of_run(outputs: Iterable[OutputFile], flags: Mapping[str, Any]) -> None:
    """Raises FlagError if an output would replace a file that a run reads (a plug-in, a model, a
    file of its data set in --data_dir, or a checkpoint in --train_dir), or that another flag of the
    run names as an output.

    `flags` contains the values or texts of the run's flags by name.
    """
    outputs = [file for file in outputs if file.path]
    written = [(name, str(flags[name])) for name in _WRITTEN if flags.get(name)]
    refuse_shared_outputs([*written, *((file.flag, str(file.path)) for file in outputs)])
    named = [*_named_files(flags)]
    for flag, path, _ in outputs:
        if not path or is_url(path):
            continue
        if (
            any(are_same_file(path, other) for other in named)
            or _is_checkpoint(path, flags)
            or _is_of_dataset(path, flags)
        ):
            raise FlagError(flag, path, IS_INPUT)


def _named_files(flags: Mapping[str, Any]) -> Iterator[str]:
    """Yields the files that flags name: plug-ins, the backbone, a Keras model."""
    yield from plugins.plugin_files_of_flags(flags)
    if backbone := flags.get("backbone_model_path"):
        yield backbone
    model = flags.get("model") or ""
    if model.startswith(_KERAS):
        yield model.removeprefix(_KERAS)


def _is_checkpoint(path: str, flags: Mapping[str, Any]) -> bool:
    name = os.path.basename(os.path.realpath(path))
    return _is_file_below(path, flags.get("train_dir")) and is_checkpoint_file(name)


def _is_of_dataset(path: str, flags: Mapping[str, Any]) -> bool:
    folder, name, model = (flags.get(name) for name in ("data_dir", "data_name", "model"))
    if not _is_file_below(path, folder):
        return False
    # A folder that cannot be read is refused later, with the reason.
    with contextlib.suppress(UsageError, BenchmarkError):
        subsets = find_dataset(name, folder, model).files_by_subset(str(folder))
        return any(are_same_file(path, str(file)) for files in subsets.values() for file in files)
    return False


def _is_file_below(path: str, folder: str | None) -> bool:
    """Whether a path is an existing file in a folder or its subfolders, directly or by links."""
    if not folder or is_url(folder) or not os.path.isfile(path):
        return False
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
