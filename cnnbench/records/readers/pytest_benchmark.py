"""Reads the JSON that pytest-benchmark writes with --benchmark-json and --benchmark-save."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cnnbench.records.readers import ResultFile, has_keys, register_reader
from cnnbench.records.run import RunRecord
from cnnbench.records.subject import Subject

PYTEST_BENCHMARK = "pytest-benchmark"

_NO_COMMITS = ("unknown", "unversioned")
"""Words that pytest-benchmark writes instead of a commit, for example outside of a repository."""


@register_reader(PYTEST_BENCHMARK, fits=has_keys("machine_info", "benchmarks"))
def read_pytest_benchmark(file: ResultFile) -> Iterator[RunRecord]:
    """Creates a record for each test, with the mean time of the test's rounds."""
    content = file.json()
    environment, commit = _environment(content), content.get("commit_info") or {}
    subject, dirty = Subject(), commit.get("dirty")
    if commit.get("id") not in (*_NO_COMMITS, None):
        subject = Subject(
            repository=str(commit["project"]) if commit.get("project") else None,
            revision=str(commit["id"]),
            dirty=dirty if isinstance(dirty, bool) else None,
            committed_at=file.time(commit.get("time")),
        )
    for part, row in enumerate(content["benchmarks"], start=1):
        name, options = str(row["fullname"]), row.get("options") or {}
        yield from file.benchmark(
            PYTEST_BENCHMARK,
            name,
            row["stats"]["mean"],
            "s",
            part,
            position=file.position(name),
            environment={
                **environment,
                "clock": options.get("timer"),
                "garbage_collection": None
                if "disable_gc" not in options
                # With disable_gc, rounds run without Python's garbage collector.
                else not options["disable_gc"],
            },
            subject=subject,
            started_at=content.get("datetime"),
        )


def _environment(content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the properties of machine and software that a file contains."""
    machine = content["machine_info"]
    cpu = machine.get("cpu") or {}
    return {
        "hostname": machine.get("node"),
        "architecture": machine.get("machine"),
        "platform": " ".join(filter(None, map(machine.get, ("system", "release")))) or None,
        "python_version": machine.get("python_version"),
        "python_implementation": machine.get("python_implementation"),
        "python_compiler": machine.get("python_compiler"),
        "cpu_model": cpu.get("brand_raw") or cpu.get("brand"),
        "logical_cpus": cpu.get("count"),
        "program_version": content.get("version"),
    }
