"""Conversion of LibriSpeech's folders into TFRecord files."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import tensorflow as tf

from cnnbench.base.reading import read_text
from cnnbench.data import output
from cnnbench.data.findings import RecordDefect
from cnnbench.data.folder import content_of
from cnnbench.data.librispeech import PREFIX, examine, serialize
from cnnbench.errors import DataError, UsageError

Utterance: TypeAlias = tuple[Path, str, str]
"""An audio file, its transcript, and the transcript's location."""


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
    """Writes ``librispeech-<subset>-*-of-*``; see `output.write_set`."""
    subsets = {
        subset: random.Random(seed).sample(utterances, len(utterances))
        for subset, utterances in found.items()
    }
    output.write_set(out, PREFIX, subsets, shards, _write_records, {})


def _write_records(path: Path, utterances: Sequence[Utterance]) -> None:
    with output.writing(path, tf.errors.OpError), tf.io.TFRecordWriter(str(path)) as file:
        for audio, text, where in utterances:
            try:
                record = serialize(content_of(audio), text, audio.stem)
                examine(record)
            except RecordDefect as defect:
                raise DataError(f"{audio}: {defect} ({where})") from defect
            file.write(record)


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
            yield path, text.strip().lower(), where
