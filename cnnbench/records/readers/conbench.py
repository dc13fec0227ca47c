"""Reads the JSON of Conbench: results as they are sent to a server, and as its API returns them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cnnbench.records.readers import ResultFile, has_keys, mean_or_invalid, register_reader, scalars
from cnnbench.records.run import RunRecord
from cnnbench.records.subject import Subject

CONBENCH = "conbench"

_HAS_RESULTS = has_keys("tags.name", "batch_id")
_HAS_PAGE = has_keys("data.tags.name", "data.batch_id")
# Properties of the machine, by the name in Conbench.
_MACHINE = {
    **{"name": "hostname", "architecture_name": "architecture", "kernel_name": "platform"},
    **{"cpu_model_name": "cpu_model", "cpu_core_count": "physical_cores"},
    **{"cpu_thread_count": "logical_cpus", "memory_bytes": "memory_bytes"},
}


def _is_conbench(document: Any) -> bool:
    return _HAS_RESULTS(document) or _HAS_PAGE(document)


@register_reader(CONBENCH, fits=_is_conbench)
def read_conbench(file: ResultFile) -> Iterator[RunRecord]:
    """Creates a record for each result, with the mean of its values. The tags of a result are the
    parameters of the benchmark. The unit of a result says whether larger values are better.
    """
    for part, result in enumerate(_results(file.json()), start=1):
        parameters = dict(result["tags"])
        name = str(parameters.pop("name"))
        parameters.pop("id", None)  # The server adds an id to the tags.
        # Results of the same benchmark in several runs are repetitions, so the run distinguishes
        # positions.
        position = file.position(name, {**parameters, "run": result.get("run_id")})
        stats = result.get("stats") or {}
        if result.get("error") or not stats.get("unit"):
            file.skip(0, name, "failed")
            continue
        unit = str(stats["unit"])
        yield from file.benchmark(
            CONBENCH,
            name,
            mean_or_invalid([_as_number(value) for value in stats.get("data") or ()]),
            unit,
            part,
            position=position,
            higher_is_better=unit.endswith("/s"),
            parameters=parameters,
            environment=_environment(result),
            subject=_subject(file, result),
            started_at=result.get("timestamp"),
        )


def _results(document: Any) -> Sequence[Mapping[str, Any]]:
    if isinstance(document, list):
        return document
    return document["data"] if _HAS_PAGE(document) else [document]


def _as_number(value: Any) -> Any:
    """Converts a number that is written as text. Other values are returned unchanged."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _environment(result: Mapping[str, Any]) -> dict[str, Any]:
    """Properties of machine and software. Conbench compares only results of the same context."""
    machine = result.get("machine_info") or result.get("hardware") or {}
    # The API returns the address of the context instead of its content.
    address = str((result.get("links") or {}).get("context", "")).rstrip("/")
    names = {"context": result.get("context"), "info": result.get("info")}
    return {
        **{name: machine.get(key) for key, name in _MACHINE.items()},
        "context_id": address.rpartition("/")[2],
        **{f"{of}_{key}": value for of, said in names.items() for key, value in scalars(said)},
    }


def _subject(file: ResultFile, result: Mapping[str, Any]) -> Subject:
    """Returns the measured commit: the key is `github` before the result is sent, then `commit`."""
    commit = result.get("github") or result.get("commit") or {}
    revision = commit.get("commit") or commit.get("sha")
    repository = commit.get("repository") or result.get("commit_repo_url")
    if not revision:
        return Subject()
    return Subject(
        repository=str(repository) if repository else None,
        revision=str(revision),
        committed_at=file.time(commit.get("timestamp")),
    )
