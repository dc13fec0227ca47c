import io
import struct
from pathlib import Path

import pytest
import tensorflow as tf
from data_sets import write_records

from cnnbench.data.tfrecord import (
    FramingError,
    count_records,
    find_defect_at,
    read_record,
)
from cnnbench.errors import DataError

RECORDS = [b"first", b"", b"x" * 1000, bytes(range(256))]
OVERHEAD = 16


@pytest.fixture
def path(tmp_path):
    return write_records(tmp_path / "train-00000-of-00001", RECORDS)


def start_of(record):
    return sum(OVERHEAD + len(data) for data in RECORDS[:record])


def test_what_tensorflow_wrote_is_found_again(path):
    assert count_records(path) == len(RECORDS)
    assert [read_record(path, i) for i in range(len(RECORDS))] == RECORDS
    with pytest.raises(DataError, match="of-00001: record 4: there is no such record"):
        read_record(path, 4)
    for record in range(4):
        for offset in (start_of(record), start_of(record) + 12, start_of(record) + 5, 10**6):
            assert find_defect_at(path, offset) is None


LONG = struct.pack("<Q", 2**62)


@pytest.mark.parametrize(
    ("changed", "record", "problem"),
    [
        (lambda content: content[:-1], 3, "truncated, 1 bytes are missing"),
        (lambda content: content[: 12 - 256 - OVERHEAD], 3, "truncated, 260 bytes are missing"),
        (lambda content: content[: start_of(2) + 5], 2, "truncated within its header"),
        (
            lambda content: content[: start_of(2)] + LONG + content[start_of(2) + 8 :],
            *(2, "the checksum of its length is wrong"),
        ),
    ],
    ids=["end", "data", "header", "length"],
)
def test_framing_is_checked_before_it_is_believed(path, changed, record, problem):
    path.write_bytes(changed(path.read_bytes()))
    with pytest.raises(FramingError, match=f"record {record}: {problem}") as caught:
        count_records(path)
    assert str(caught.value).endswith("a damaged file is refused, also with --on_bad_record=skip")
    assert (caught.value.path, caught.value.record) == (path, record)


@pytest.mark.parametrize("where", ["length", "data", "end"])
def test_the_offset_that_tensorflow_reports_leads_to_the_record(path, where):
    content = bytearray(path.read_bytes())
    if where == "end":
        del content[-3:]
    else:
        content[start_of(3) + {"length": 2, "data": 100}[where]] ^= 1
    path.write_bytes(content)
    with pytest.raises(tf.errors.DataLossError) as caught:
        list(tf.data.TFRecordDataset(str(path)))
    offset = int(caught.value.message.split("record at ")[1].split()[0].rstrip("'"))
    assert "record 3:" in str(find_defect_at(path, offset))


def test_a_file_that_cannot_be_opened_or_read(tmp_path, monkeypatch):
    """A broken disk lets a file be opened, but not read."""
    with pytest.raises(DataError, match="nowhere: No such file"):
        count_records(tmp_path / "nowhere")

    class Broken(io.FileIO):
        def read(self, size=-1):
            raise OSError(5, "Input/output error")

    (tmp_path / "broken").write_bytes(bytes(100))
    monkeypatch.setattr(Path, "open", lambda path, mode, buffering: Broken(path, mode))
    with pytest.raises(DataError, match=r"broken: Input/output error$"):
        count_records(tmp_path / "broken")
