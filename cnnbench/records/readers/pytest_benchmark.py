"""Reads the JSON that pytest-benchmark writes with --benchmark-json and --benchmark-save."""

from __future__ import annotations

from collections.abc import Iterator

from cnnbench.records.readers import ResultFile, register_reader
from cnnbench.records.run import RunRecord, Subject

PYTEST_BENCHMARK = "pytest-benchmark"

_NO_COMMITS = ("unknown", "unversioned")
"""Words that pytest-benchmark writes instead of a commit, for example outside of a repository."""


@register_reader(PYTEST_BENCHMARK, rb'"machine_info": \{')
def read_pytest_benchmark(file: ResultFile) -> Iterator[RunRecord]:
    """Creates a record for each test, with the mean time of the test's rounds."""
    content = file.json()
    machine, commit = content["machine_info"], content.get("commit_info") or {}
    cpu = machine.get("cpu") or {}
    environment = {
        "hostname": machine.get("node"),
        "architecture": machine.get("machine"),
        "python_version": machine.get("python_version"),
        "cpu_model": cpu.get("brand_raw") or cpu.get("brand"),
        "logical_cpus": cpu.get("count"),
    }
    subject = Subject()
    if commit.get("id") not in (*_NO_COMMITS, None):
        subject = Subject(
            repository=commit.get("project"), revision=commit["id"], dirty=commit.get("dirty")
        )
    for part, row in enumerate(content["benchmarks"], start=1):
        yield from file.benchmark(
            PYTEST_BENCHMARK,
            str(row["fullname"]),
            row["stats"]["mean"],
            "s",
            part,
            environment=environment,
            subject=subject,
            started_at=content.get("datetime"),
        )
