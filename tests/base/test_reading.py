"""Files that users name: pipes nobody writes to and devices are refused, not waited for.

Tests cnnbench/base/files.py and cnnbench/base/urls.py.
"""

from __future__ import annotations

import os
import threading

import pytest

from cnnbench.base import plugins
from cnnbench.base.files import parse_json, read_file, read_json, read_text
from cnnbench.base.urls import (
    UrlPath,
    is_url,
    local_or_url_path,
    local_path,
    path_fault,
    strip_file_scheme,
)
from cnnbench.campaigns.suite.nodes import load_yaml_file
from cnnbench.errors import FlagError, PathError, UsageError
from cnnbench.records.load import load_run


@pytest.fixture
def endless(tmp_path):
    """Paths that have no end, or that cannot be read, with why."""
    pipe, loop = tmp_path / "pipe", tmp_path / "loop"
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    return {
        "/dev/zero": "is a device",
        "/dev/full": "is a device",
        str(pipe): "is a pipe",
        str(loop): "Too many levels",
        "/proc/self/mem": "Input/output error",
        str(tmp_path): "Is a directory",
    }


@pytest.mark.timeout(60)
def test_what_has_no_end_is_refused_wherever_it_is_named(endless):
    def plug_in(path):
        plugins.load_plugin_file(path)

    for path, reason in endless.items():
        for read, error in (
            *((read_file, PathError), (read_json, PathError), (load_run, PathError)),
            *((load_yaml_file, PathError), (plug_in, FlagError)),
        ):
            with pytest.raises(error) as caught:
                read(path)
            assert caught.value.reason.startswith(f"cannot be read: {reason}")


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
    with pytest.raises(PathError, match="1 MiB"):
        read_file(path, 1)
    (exact := tmp_path / "exact").write_bytes(bytes(1 << 20))
    assert len(read_file(exact, 1)) == 1 << 20
    with pytest.raises(UsageError, match=r"large: .* 1 MiB"):
        load_yaml_file(str(path))


def test_text_may_have_a_byte_order_mark(tmp_path):
    path = tmp_path / "text"
    for content in (b"\xef\xbb\xbfcaf\xc3\xa9", b"caf\xc3\xa9"):
        path.write_bytes(content)
        assert read_text(path) == "café"
    path.write_bytes(b"caf\xe9")
    with pytest.raises(FlagError, match=r"^--labels=.*text: .*UTF-8"):
        read_text(path, flag="labels")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": 1, "b": 2, "a": 3}', "key 'a'"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": [1, NaN]}', "not JSON: NaN"),
        ("[1e999]", ": 1e999 "),
        ("[-1e999]", ": -1e999 "),
        (b"\x00\xff\xfe", "UTF-8"),
        ('{"a": ', "after 6 characters"),
        (" ", "empty"),
        ("x", "Expecting value"),
    ],
)
def test_what_is_no_json(text, reason, tmp_path):
    with pytest.raises(ValueError) as caught:
        parse_json(text)
    assert reason in str(caught.value)
    path = tmp_path / "a.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(PathError, match=r"a\.json: "):
        read_json(path)


@pytest.mark.parametrize(
    ("text", "with_urls", "without"),
    [
        ("a/b", "", ""),
        ("gs:folder", "", ""),
        ("./gs:/folder", "", ""),
        ("./-", "", ""),
        ("-", "standard input", "standard input"),
        ("gs://bucket/folder", "", "gsutil cp"),
        ("/a,gs://bucket/b", "", "gsutil cp"),
        ("gs://bucket/a,/b", "", "gsutil cp"),
        ("gs:///folder", "a URL such as", "gsutil cp"),
        ("gs:/folder", "a URL such as", "gsutil cp"),
        ("a-b://bucket/x", "a URL such as", "gsutil cp"),
        ("file://host/folder", "a URL such as", "gsutil cp"),
        ("gs://bucket/a,gs:/b", "a URL such as", "gsutil cp"),
    ],
)
def test_paths_that_are_refused(text, with_urls, without):
    for allowed, words in ((True, with_urls), (False, without)):
        fault = path_fault(text, allowed)
        assert bool(fault) == bool(words)
        assert words in fault
        if not allowed and words:
            with pytest.raises(FlagError, match=f"^--out={text}: "):
                local_path(text, "out")
            with pytest.raises(PathError, match=f"^{text}: "):
                local_path(text)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("file:///a/b", "/a/b"),
        ("file://localhost/a", "/a"),
        ("file:/a%20b", "/a%20b"),
        ("/a,file:///b", "/a,/b"),
        ("/a/profile:/b", "/a/profile:/b"),  # a folder of that name
    ],
)
def test_local_files_may_be_given_as_urls(text, path):
    assert strip_file_scheme(text) == local_path(text) == path


@pytest.mark.parametrize(
    ("text", "expected"),
    [("gs://a/b", True), ("gs:/b", True), ("./gs:/b", False), ("1s:/b", False), ("gs:b", False)],
)
def test_urls_are_paths_of_their_own(text, expected):
    assert is_url(text) == expected
    assert isinstance(local_or_url_path(text), UrlPath) == expected
    if expected:
        assert str(local_or_url_path(text) / "c") == "gs://" + text[4:].lstrip("/") + "/c"
