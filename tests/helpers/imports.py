"""Result files for tests of readers."""

from __future__ import annotations

from pathlib import Path

from cnnbench.records.readers import read_results


def read(folder, text, labels=""):
    """Records of a file's text, and the reasons for what was left out."""
    path = folder / "results.log"
    path.write_text(text)
    records, skipped = read_results(str(path), labels)
    return records, [one.reason for one in skipped]


GOLDEN = Path(__file__).parents[1] / "golden"
"""Standard output of tf_cnn_benchmarks itself; see the README there."""

TRAINING = (GOLDEN / "training.txt").read_text()


def edited(text, edits):
    """A log in which these texts, all of which it has, are replaced."""
    for old, new in edits.items():
        assert old in text
        text = text.replace(old, new)
    return text
