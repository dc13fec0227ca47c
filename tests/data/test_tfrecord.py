import io
import struct

import pytest
import tensorflow as tf
from data_sets import write_records

from cnnbench.data.tfrecord import (
    FramingError,
    count_records,
    defect_at,
    find_record,
    masked_crc32c,
)
from cnnbench.errors import DataError

RECORDS = [b"first", b"", b"x" * 1000, bytes(range(256))]
OVERHEAD = 16


@pytest.fixture
def path(tmp_path):
    return write_records(tmp_path / "train-00000-of-00001", RECORDS)


def flip(path, offset):
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def start_of(record):
    return sum(OVERHEAD + len(data) for data in RECORDS[:record])


def test_crc32c_of_the_published_vectors():
    """RFC 3720, appendix B.4."""
    for data, crc in [
        (b"", 0),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ]:
        masked = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) % 2**32
        assert masked_crc32c(data) == masked


def test_what_tensorflow_wrote_is_found_again(path):
    assert count_records(path) == len(RECORDS)
    assert [find_record(path, i) for i in range(len(RECORDS))] == RECORDS
    with pytest.raises(DataError, match="of-00001: record 4: there is no such record"):
        find_record(path, 4)
    for record in range(4):
        for offset in (start_of(record), start_of(record) + 12, start_of(record) + 5, 10**6):
            assert defect_at(path, offset) is None


@pytest.mark.parametrize(
    ("kept", "record", "problem"),
    [
        (-1, 3, "truncated, 1 bytes are missing"),
        (-(256 + OVERHEAD - 12), 3, "truncated, 260 bytes are missing"),
        (start_of(2) + 5, 2, "truncated within its header"),
    ],
)
def test_a_file_that_ends_too_early(path, kept, record, problem):
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(FramingError, match=f"record {record}: {problem}") as caught:
        count_records(path)
    assert str(caught.value).endswith("a damaged file is refused, also with --on_bad_record=skip")
    assert (caught.value.path, caught.value.record) == (path, record)


def test_a_wrong_length_is_noticed_before_it_is_believed(path):
    content = bytearray(path.read_bytes())
    content[start_of(2) : start_of(2) + 8] = struct.pack("<Q", 2**62)
    path.write_bytes(content)
    with pytest.raises(FramingError, match="record 2: the checksum of its length is wrong"):
        count_records(path)


def test_damaged_data_is_counted_but_not_delivered(path):
    flip(path, start_of(2) + 500)
    assert count_records(path) == len(RECORDS)
    with pytest.raises(DataError, match="record 2: its checksum is wrong"):
        find_record(path, 2)
    assert find_record(path, 3) == RECORDS[3]


@pytest.mark.parametrize("where", ["length", "data", "end"])
def test_the_offset_that_tensorflow_reports_leads_to_the_record(path, where):
    if where == "end":
        path.write_bytes(path.read_bytes()[:-3])
    else:
        flip(path, start_of(3) + {"length": 2, "data": 100}[where])
    with pytest.raises(tf.errors.DataLossError) as caught:
        list(tf.data.TFRecordDataset(str(path)))
    offset = int(caught.value.message.split("record at ")[1].split()[0].rstrip("'"))
    assert "record 3:" in str(defect_at(path, offset))


def test_a_file_that_cannot_be_opened_or_read(tmp_path, monkeypatch):
    """A broken disk lets a file be opened, but not read."""
    with pytest.raises(DataError, match="nowhere: No such file"):
        count_records(tmp_path / "nowhere")

    class Broken(io.FileIO):
        def read(self, size=-1):
            raise OSError(5, "Input/output error")

    (tmp_path / "broken").write_bytes(bytes(100))
    monkeypatch.setattr("builtins.open", lambda path, mode, buffering: Broken(path, mode))
    with pytest.raises(DataError, match=r"broken: Input/output error$"):
        count_records(tmp_path / "broken")
