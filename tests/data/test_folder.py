import os

import pytest

from cnnbench.data.folder import once_per_content
from cnnbench.errors import DataError


@pytest.fixture
def counted():
    """A counter of bytes, and the paths it was really asked for."""
    asked = []

    @once_per_content
    def count(path):
        asked.append(path)
        try:
            return len(path.read_bytes())
        except OSError as error:
            raise DataError("gone") from error

    return count, asked


def test_a_file_that_grew_was_touched_or_was_replaced_is_looked_at_again(counted, tmp_path):
    count, asked = counted
    path = tmp_path / "a"
    path.write_bytes(b"123")
    count(path)
    path.write_bytes(b"1234")
    assert count(path) == 4
    os.utime(path, ns=(0, 0))
    assert count(path) == 4
    other = tmp_path / "b"
    other.write_bytes(b"5678")
    os.utime(other, ns=(0, 0))
    other.replace(path)
    assert count(path) == 4
    assert len(asked) == 4


def test_failures_are_not_remembered(counted, tmp_path):
    count, asked = counted
    for _ in range(2):
        with pytest.raises(DataError, match="gone"):
            count(tmp_path / "a")
    (tmp_path / "a").write_bytes(b"1")
    assert count(tmp_path / "a") == 1
    assert len(asked) == 3
