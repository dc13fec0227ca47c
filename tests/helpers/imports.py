"""Result files of other programs, for tests of readers."""

from __future__ import annotations

import json
from pathlib import Path

from cnnbench.records.readers import ReadOptions, read_results

IMPORTS = Path(__file__).parents[1] / "records" / "imports"
"""Files that the tools themselves have written; see the README there."""


def content(name):
    """The content of a file in IMPORTS."""
    return json.loads((IMPORTS / name).read_text())


def read(folder, document, **options):
    """Records of a document, or of a file's text, and the reasons for what was left out."""
    path = folder / "results.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    records, skipped = read_results(str(path), ReadOptions(**options))
    return records, [one.reason for one in skipped]


def benchmark_rows(records):
    """Name with parameters, value and commit of each record."""
    for one in records:
        assert [*one.imported.values] == [one.imported.kind]
        assert one.config["imported_from"] == one.imported.program
    return [
        (
            " ".join(
                str(value)
                for key, value in one.config.items()
                if key.startswith(("bench", "param", "position"))
            ),
            *one.imported.values.values(),
            one.subject and one.subject.revision,
        )
        for one in records
    ]


def file_rows(name):
    """Rows of a file in IMPORTS, and the reasons for what was left out."""
    records, skipped = read_results(str(IMPORTS / name))
    return benchmark_rows(records), [one.reason for one in skipped]


GOLDEN = Path(__file__).parents[1] / "golden"
"""Standard output of tf_cnn_benchmarks itself; see the README there."""

TRAINING = (GOLDEN / "training.txt").read_text()

# Written from the source of Horovod's examples (pytorch_synthetic_benchmark.py).
HOROVOD = """\
Model: resnet50
Batch size: 32
Number of GPUs: 4
Running warmup...
Running benchmark...
Iter #0: 220.1 img/sec per GPU
Iter #1: 221.3 img/sec per GPU
Img/sec per GPU: 220.7 +-1.2
Total img/sec on 4 GPU(s): 882.8 +-4.7
"""


def edited(text, edits):
    """A log in which these texts, all of which it has, are replaced."""
    for old, new in edits.items():
        assert old in text
        text = text.replace(old, new)
    return text
