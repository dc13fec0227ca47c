import os

from cnnbench.data.folder import cache_by_file_version


def test_a_file_is_counted_again_when_it_grew_was_touched_or_was_replaced(tmp_path):
    asked = []

    @cache_by_file_version
    def count(path):
        asked.append(path)
        return len(path.read_bytes()) if path.exists() else -1

    path, other = tmp_path / "a", tmp_path / "b"
    assert [count(path), count(path)] == [-1, -1]  # failures are not remembered
    path.write_bytes(b"123")
    assert [count(path), count(path)] == [3, 3]
    path.write_bytes(b"1234")
    assert count(path) == 4
    os.utime(path, ns=(0, 0))
    assert count(path) == 4
    other.write_bytes(b"5678")
    os.utime(other, ns=(0, 0))
    other.replace(path)
    assert count(path) == 4
    assert len(asked) == 2 + 4
