"""Files that users name: pipes nobody writes to and devices are refused, not waited for."""

from __future__ import annotations

import os
import threading

import pytest

from cnnbench.base import plugins
from cnnbench.base.reading import read_file
from cnnbench.campaigns.sweep.document import load
from cnnbench.errors import FlagError, UsageError
from cnnbench.records.load import load_records, load_run


@pytest.fixture
def endless(tmp_path):
    """Paths that have no end, or that cannot be read, with why."""
    pipe, loop = tmp_path / "pipe", tmp_path / "loop"
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    return {
        "/dev/zero": "is a device",
        "/dev/full": "is a device",
        str(pipe): "is a pipe that nobody writes to",
        str(loop): "Too many levels of symbolic links",
        "/proc/self/mem": "Input/output error",
        str(tmp_path): "Is a directory",
    }


@pytest.mark.timeout(60)
def test_what_has_no_end_is_refused_wherever_it_is_named(endless):
    def plug_in(path):
        plugins.load(path, "model_plugin")

    for path, reason in endless.items():
        with pytest.raises(OSError) as caught:
            read_file(path)
        assert caught.value.strerror.startswith(reason)
        for read, error in ((plug_in, FlagError), (load_run, UsageError), (load, UsageError)):
            with pytest.raises(error, match=reason):
                read(path)


def test_a_pipe_with_a_writer_is_read_to_its_end(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    holder = os.open(pipe, os.O_RDWR)  # as a shell holds <(command)

    def write():
        with open(pipe, "wb") as file:
            file.write(b"x" * 300_000)
            os.close(holder)

    writer = threading.Thread(target=write)
    writer.start()
    assert read_file(pipe) == b"x" * 300_000
    writer.join()


def test_too_large_a_file(tmp_path):
    path = tmp_path / "large"
    path.write_bytes(bytes((1 << 20) + 1))
    assert len(read_file(path)) == (1 << 20) + 1
    with pytest.raises(OSError, match="has more than 1 MiB"):
        read_file(path, 1)
    with pytest.raises(UsageError, match="large: has more than 1 MiB"):
        load(str(path))


def test_records_of_devices_are_skipped(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    (found,) = load_records([tmp_path / "pipe.json"]).skipped
    assert found.reason == "cannot be read: is a pipe that nobody writes to"
