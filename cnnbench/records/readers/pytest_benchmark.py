"""JSON of ``pytest --benchmark-json`` and of the files that --benchmark-save writes."""

from __future__ import annotations

from collections.abc import Iterator

from cnnbench.records.readers import ResultFile, register_reader
from cnnbench.records.run import RunRecord, Subject

PROGRAM = "pytest-benchmark"

_NO_COMMITS = ("unknown", "unversioned")
"""What it writes in place of a commit, such as outside of a repository."""


@register_reader(PROGRAM, rb'"machine_info": \{')
def read(file: ResultFile) -> Iterator[RunRecord]:
    """A record for each test, with the mean time of its rounds."""
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
            PROGRAM,
            str(row["fullname"]),
            row["stats"]["mean"],
            "s",
            part,
            environment=environment,
            subject=subject,
            started_at=content.get("datetime"),
        )
