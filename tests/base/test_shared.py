"""What related processes see of shared memory; real forks."""

from __future__ import annotations

import os
import resource
import sys

import pytest

from cnnbench.base.shared import SharedDoubles, SharedValue

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared memory needs Linux")


def _in_child(work):
    child = os.fork()
    if not child:
        work()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_doubles_outlive_the_process_that_appends():
    shared = {count: SharedDoubles() for count in (0, 1, 1023, 1024, 5000)}
    _in_child(lambda: [doubles.append(n / 2) for c, doubles in shared.items() for n in range(c)])
    for count, doubles in shared.items():
        expected = [n / 2 for n in range(count)]
        assert len(doubles) == count
        assert list(doubles) == expected
        assert doubles[:3] == expected[:3]
        if count:
            assert (doubles[-1], doubles[0]) == (expected[-1], expected[0])
        doubles.append(7.0)
        assert list(doubles) == [*expected, 7.0]


def test_a_value_is_the_last_that_was_set():
    value = SharedValue()
    assert value.get() is None
    _in_child(lambda: (value.set(["long"] * 1000), value.set({"short": 1})))
    assert value.get() == {"short": 1}


def test_a_value_that_was_being_set_is_none():
    value = SharedValue()
    write = os.pwrite

    def killed():
        os.pwrite = lambda file, data, at: (write(file, data[:12], at), os._exit(7))
        value.set({"key": "text"})

    value.set({"key": "text"})
    _in_child(killed)
    assert value.get() is None


def test_a_limit_of_file_sizes_ends_what_is_shared_and_nothing_else():
    doubles, value = SharedDoubles(), SharedValue()

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))
        for number in range(5000):
            doubles.append(float(number))
        assert list(doubles) == [float(number) for number in range(5000)]
        value.set(b"x" * 10_000)
        assert SharedDoubles().append(1.0) is None

    _in_child(limited)
    assert list(doubles) == [float(number) for number in range(1023)]
    assert value.get() is None
