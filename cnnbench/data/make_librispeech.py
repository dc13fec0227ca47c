"""Conversion of LibriSpeech's folders into TFRecord files."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf

from cnnbench.base.reading import read_text
from cnnbench.data import output
from cnnbench.data.dataset import SUBSETS
from cnnbench.data.findings import RecordDefect
from cnnbench.data.folder import content_of
from cnnbench.data.librispeech import PREFIX, examine, serialize
from cnnbench.errors import DataError, UsageError


@dataclass(frozen=True)
class Utterance:
    """An audio file, its transcript, and the transcript's location."""

    path: Path
    text: str
    where: str


def read_transcripts(source: Path, validation: str) -> dict[str, Sequence[Utterance]]:
    """Finds the utterances of ``train-*`` and of the validation folder.

    These folders hold SPEAKER/CHAPTER/SPEAKER-CHAPTER.trans.txt, a line per utterance (its name, a
    blank, its text), and beside it the audio as NAME.wav.
    """
    if not source.is_dir():
        raise UsageError(f"{source}: there is no such folder")
    folders = {
        "train": sorted(path for path in source.glob("train-*") if path.is_dir()),
        "validation": [source / validation] if (source / validation).is_dir() else [],
    }
    found: dict[str, Sequence[Utterance]] = {
        subset: [one for folder in some for one in _utterances(folder)]
        for subset, some in folders.items()
        if some
    }
    if not any(found.values()):
        raise UsageError(f"{source}: holds no transcripts in train-* or {validation}")
    return found


def make_librispeech(
    found: Mapping[str, Sequence[Utterance]], out: Path, shards: Mapping[str, int], seed: int
) -> None:
    """Writes ``librispeech-<subset>-*-of-*``; see `make_imagenet.make_imagenet`."""
    with output.unfinished_folder(out, [f"{PREFIX}{s}-*-of-*" for s in SUBSETS]) as folder:
        written = []
        for subset, utterances in found.items():
            shuffled = random.Random(seed).sample(utterances, len(utterances))
            for name, part in output.shards(f"{PREFIX}{subset}", shuffled, shards[subset]):
                path = folder / name
                written.append(path)
                with (
                    output.writing(path, tf.errors.OpError),
                    tf.io.TFRecordWriter(str(path)) as file,
                ):
                    for one in part:
                        file.write(_record(one))
        output.move(written, out)


def _utterances(folder: Path) -> Iterator[Utterance]:
    for listing in sorted(folder.glob("*/*/*.trans.txt")):
        for number, line in enumerate(read_text(listing).splitlines(), start=1):
            name, _, text = line.partition(" ")
            where = f"{listing}: line {number}"
            if not text.strip():
                raise DataError(f"{where}: has no transcript")
            path = listing.with_name(f"{name}.wav")
            if not path.is_file():
                if path.with_suffix(".flac").is_file():
                    raise UsageError(
                        f"{path.with_suffix('.flac')}: TensorFlow cannot decode FLAC; convert the "
                        "files to WAV beside them first, each by sox NAME.flac NAME.wav"
                    )
                raise DataError(f"{where}: there is no file {path}")
            yield Utterance(path, text.strip().lower(), where)


def _record(one: Utterance) -> bytes:
    try:
        record = serialize(content_of(one.path), one.text, one.path.stem)
        examine(record)
    except RecordDefect as defect:
        raise DataError(f"{one.path}: {defect} ({one.where})") from defect
    return record
