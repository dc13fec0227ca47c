"""Results of processes in the folder of a campaign: stored when a process has ended, and read
instead of running the process again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cnnbench.campaigns.processes.child import ProcessResult
from cnnbench.campaigns.processes.journal import digest, is_record_of
from cnnbench.campaigns.processes.outcome import read_record
from cnnbench.campaigns.processes.requests import ProcessRequest, RequestBatch
from cnnbench.campaigns.processes.results_dir import ResultsFolder
from cnnbench.records.codec import json_text
from cnnbench.records.metrics.figures import throughput
from cnnbench.records.result_files import record_from_json
from cnnbench.records.run import RunRecord


def stored_result(folder: ResultsFolder, request: ProcessRequest) -> ProcessResult | None:
    """The result of a process that an earlier session completed; None if there is no such result,
    or if this session does not resume.
    """
    if not (folder.resume and request.answers and request.name in folder.started_processes):
        return None
    if request.leaves is not None and not request.leaves.exists():
        return None
    event = folder.last_process_events.get(request.name, {})
    status, text = str(event.get("status", "")), str(event.get("problem", ""))
    seconds, group = float(event.get("seconds", 0.0)), int(event.get("group", 0))
    if request.target is None and status in request.answers:
        return ProcessResult(0, seconds, status=status, group=group)
    for path in (request.target, folder.pending_record_path(request.name)):
        # If a process was killed before the event, nothing names its record.
        if path is None or ("sha256" in event and not is_record_of(event, path)):
            continue
        record = read_record(path)
        if record is None:
            continue
        if record.status == "ok":
            status, text = "ok", ""
        if status in request.answers:
            document = record.to_dict()
            return ProcessResult(
                0, seconds, status=status, message=text, document=document, group=group
            )
    return None


def store_result(
    batch: RequestBatch, request: ProcessRequest, ended: ProcessResult
) -> tuple[ProcessResult, dict[str, Any]]:
    """Stores the record of an ended process in the results folder.

    If the batch is only valid as a whole, the record is pending until all processes have ended.
    Returns the result with the record as it was stored, and the process's event for the journal,
    with the path and the digest of a record that later sessions read.
    """
    folder = batch.folder
    attempts = folder.killed_processes.get(batch.name, ())
    lost = [process for attempt in attempts for process in attempt]
    ended = replace(ended, document=request.place(ended.document, lost))
    target = request.target
    if batch.sides:
        target = folder.pending_record_path(request.name)
    elif ended.status not in request.answers:
        target = request.failed or target
    # A pending record remains until the journal contains the end of its process.
    target = target or folder.pending_record_path(request.name)
    if request.failed is not None and not ended.message and not batch.sides:
        folder.remove(request.failed)  # An earlier attempt that failed may have left a record.
    if request.leaves is not None:
        folder.move_finished(request.leaves)
    if ended.unusable is not None:
        folder.write(target.with_suffix(".unusable"), ended.unusable)
    data = json_text(ended.document).encode("ascii")
    folder.write(target, data)
    record = record_from_json(ended.document)
    event: dict[str, Any] = {
        "name": request.name,
        "status": ended.status,
        "seconds": round(ended.seconds, 3),
        "images_per_sec": throughput(record) if isinstance(record, RunRecord) else None,
        "problem": ended.message,
        "group": ended.group,
    }
    if request.target is not None:
        # The pending record of a batch will be at its target.
        path = request.target if batch.sides else target
        event |= {"record": str(path.relative_to(folder.folder)), "sha256": digest(data)}
    return ended, {**event, **request.facts}
