"""Data sets: names, class counts, subset sizes, and selection by flags. No TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cnnbench.base import plugins
from cnnbench.base.urls import place
from cnnbench.data.findings import Findings
from cnnbench.data.folder import readable
from cnnbench.errors import DataError, FlagError, UsageError
from cnnbench.models import registry
from cnnbench.models.elements import IMAGE_CLASSIFICATION, Element

SUBSETS = ("train", "validation")


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Description of one data set.

    Attributes:
      name: value of ``--data_name``, and the key of a model in the registry.
      num_classes: width of the logits. ImageNet has 1000 classes and label 0 is the
        background; CIFAR-10 keeps the 11 of tf_cnn_benchmarks (10 classes, one spare).
      examples: examples per subset of the published data set: the epoch of synthetic data.
      files: names of its files, for messages.
      find: (directory, subset) to the files in order; raises FlagError if there are none.
      count: (files, subset) to the number of examples; raises DataError for an unusable file.
      open: `InputSpec` to the `Pipeline` that reads its files.
      check: (files, number of classes) to the findings of a check of every record.
      missing: names of files that the subset lacks, judging by those present.
      left_out: files that are named like those of the subset but are not read.
      preprocessors: values of ``--input_preprocessor`` that its pipeline supports.
      skips_bad_records: whether its pipeline supports ``--on_bad_record=skip``.
      elements: parts of one example; by default an image and its class.
    """

    name: str
    num_classes: int
    examples: Mapping[str, int]
    files: str
    find: Callable[[str, str], Sequence[Path | str]] = field(repr=False)
    count: Callable[[Sequence[Path], str], int] = field(repr=False)
    open: Callable[[Any], Any] = field(repr=False)
    check: Callable[[Sequence[Path], int], Findings] = field(repr=False)
    missing: Callable[[Sequence[Path]], Sequence[str]] = field(default=lambda _: (), repr=False)
    left_out: Callable[[Sequence[Path]], Sequence[Path]] = field(default=lambda _: (), repr=False)
    preprocessors: tuple[str, ...] = ("default",)
    skips_bad_records: bool = False
    elements: tuple[Element, ...] = IMAGE_CLASSIFICATION

    def __post_init__(self) -> None:
        """Checks the description; UsageError names the wrong attribute."""
        plugins.check_name("a data set", self.name)
        plugins.check_attributes(self, Dataset, f"data set {self.name}")
        for subset in SUBSETS:
            count = self.examples.get(subset, 0)
            if count < 1:
                what = f"examples[{subset!r}] must be at least 1, not {count}"
                raise UsageError(f"data set {self.name}: {what}")

    def num_examples(self, subset: str, data_dir: str | None = None) -> int:
        """Examples in ``subset`` ("train" or "validation"): one epoch.

        Those of the published data set without ``data_dir``, else those in its files; FlagError or
        DataError if there are none or one cannot be used.
        """
        if data_dir is None:
            return self.examples[subset]
        files = self._files(data_dir, subset)
        examples = self.count(files, subset)
        if examples < 1:
            raise DataError(f"{data_dir}: the {subset} files hold no records")
        return examples

    def gaps(self, subset: str, data_dir: str) -> list[str]:
        """Lines about files that a subset lacks, and about files beside it that are not read."""
        files, notices = self._files(data_dir, subset), []
        if missing := self.missing(files):
            count = f"{len(missing)} of {len(missing) + len(files)} {subset} files are missing"
            notices.append(f"{count}, the first {missing[0]}; epochs are shorter")
        if extra := self.left_out(files):
            notices.append(f"{subset} files not read: {len(extra)}, the first {extra[0].name}")
        return notices

    def subsets_in(self, data_dir: str) -> dict[str, Sequence[Path]]:
        """Files of every subset in a directory."""
        found = self._look_into(data_dir)
        if not found:
            raise FlagError("data_dir", data_dir, f"holds no {self.name} files ({self.files})")
        return found

    def _files(self, data_dir: str, subset: str) -> list[Path]:
        files = [place(path) for path in self.find(data_dir, subset)]
        absent = next((path for path in files if not (path.is_file() or path.exists())), None)
        if absent is not None:
            who = plugins.origin("dataset_plugin", self.name) or f"--data_name={self.name}"
            raise UsageError(f"{who}: find names {absent}, which does not exist")
        if not files:
            raise FlagError("data_dir", data_dir, f"holds no {self.name} {subset} files")
        return files

    def _look_into(self, data_dir: str) -> dict[str, Sequence[Path]]:
        found: dict[str, Sequence[Path]] = {}
        for subset in SUBSETS:
            try:
                found[subset] = self._files(data_dir, subset)
            except FlagError as error:
                if error.__cause__ is not None:  # not absent, but unreadable or defective
                    raise
        return found


_DATASETS: dict[str, Dataset] = {}


def register_dataset(dataset: Dataset) -> None:
    """Registers a data set for ``--data_name`` and detection; UsageError if the name is taken."""
    if _DATASETS.get(dataset.name, dataset) is not dataset:
        raise UsageError(f"a data set named {dataset.name!r} is registered already")
    _DATASETS[dataset.name] = dataset


def load_plugin(path: str) -> tuple[str, ...]:
    """Runs a Python file that calls `register_dataset`; returns the names, see `plugins.load`."""
    return tuple(map(str, plugins.load(path, "dataset_plugin")))


def dataset_names() -> tuple[str, ...]:
    """Values of ``--data_name``, in order of registration."""
    return tuple(_DATASETS)


def find_dataset(data_name: str | None, data_dir: str | None, model: str | None = None) -> Dataset:
    """The data set that the flags select; FlagError if it is unknown or undetermined.

    Without a name, the first data set whose name is part of ``data_dir``, or else one whose files
    are there; without both, the only data set for which the model is registered, or ImageNet if it
    is among several or there is no model.
    """
    if data_name is not None:
        if data_name not in _DATASETS:
            raise FlagError("data_name", data_name, f"must be one of {', '.join(_DATASETS)}")
        return _DATASETS[data_name]
    if data_dir is None:
        return _of_model(model)
    for name, dataset in _DATASETS.items():
        if name in data_dir:
            return dataset
    return detect(data_dir)


def _of_model(model: str | None) -> Dataset:
    names = () if model is None else registry.datasets_of(model)
    if not names or "imagenet" in names:
        return _DATASETS["imagenet"]
    if len(names) > 1:
        reason = f"is a model for {' and '.join(names)}; give --data_name"
        raise FlagError("model", str(model), reason)
    return find_dataset(names[0], None)


def detect(data_dir: str) -> Dataset:
    """The data set whose files are in a directory; the last registered, if several match."""
    with readable(data_dir):
        for dataset in reversed(_DATASETS.values()):
            if dataset._look_into(data_dir):
                return dataset
    known = "; ".join(f"{name}: {dataset.files}" for name, dataset in _DATASETS.items())
    raise FlagError("data_dir", data_dir, f"holds files of no data set ({known})")


plugins.add_kind(
    plugins.Kind(
        flag="dataset_plugin",
        noun="data set",
        call="cnnbench.data.register_dataset(Dataset(...))",
        table=lambda: _DATASETS,
        prepare=lambda: None,  # imported with the package
    )
)
