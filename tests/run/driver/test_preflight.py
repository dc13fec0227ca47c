"""The files that a run writes, as they are known before it runs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cnnbench.flags import Params
from cnnbench.run.driver.preflight import output_files, partition_path


def files(**flags):
    """The files of a run with these flags: flag and path."""
    plan = SimpleNamespace(params=Params(**flags))
    return [(file.flag, file.path) for file in output_files(plan) if file.path]


@pytest.mark.parametrize(
    ("prefix", "path"), [("a/graph.txt", "a/graph3.txt"), ("a.b/graph", "a.b/graph3")]
)
def test_the_number_of_a_device_is_before_the_suffix(prefix, path):
    assert partition_path(prefix, 3) == path


def test_a_run_writes_what_its_flags_name():
    assert files() == []
    named = {name: f"{name}.x" for name in ("graph_file", "profile_json")}
    assert files(**named) == [*named.items()]
    assert files(trace_file="t", use_chrome_trace_format=True) == [("trace_file", "t")]
    assert files(trace_file="t", use_chrome_trace_format=False) == []


def test_each_device_and_the_host_have_a_graph():
    flag = "partitioned_graph_file_prefix"
    expected = [(flag, f"part{number}.pb") for number in range(4)]
    assert files(num_gpus=3, **{flag: "part.pb"}) == expected
