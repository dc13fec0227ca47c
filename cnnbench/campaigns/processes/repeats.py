"""Repeats of processes that a signal from outside or a time-out has ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cnnbench.campaigns.processes.child import ProcessResult
from cnnbench.campaigns.processes.journal import LOST
from cnnbench.campaigns.processes.requests import RequestBatch
from cnnbench.records.codec import encode
from cnnbench.records.run import KilledProcess


def prepare_repeat(
    batch: RequestBatch, results: Mapping[str, ProcessResult], notice: Callable[[str], None]
) -> bool:
    """Whether a batch must run again, because processes were killed from outside and the limits of
    the batch allow a further attempt.

    If so, the records and logs of the failed attempt are renamed, and `notice` prints why.
    `results` contains the results of all processes of the batch by name.
    """
    failed = [request for request in batch.requests if results[request.name].status != "ok"]
    if not batch.repeats or not failed or not all(results[one.name].lost for one in failed):
        return False
    names = [request.name for request in batch.requests]
    sides = dict(zip(names, batch.sides, strict=True))
    lost = [KilledProcess(side=sides[one.name], how=results[one.name].lost) for one in failed]
    lost.sort(key=lambda process: process.side)
    folder = batch.folder
    attempts = folder.killed_processes.setdefault(batch.name, [])
    is_left = folder.number_of_repeated_attempts < batch.most_repeats
    again = len(attempts) < batch.repeats and is_left
    folder.journal.add(LOST, pair=batch.name, names=names, lost=encode(lost), again=again)
    if again:
        attempts.append(lost)
        for request in batch.requests:
            for path in (folder.pending_record_path(request.name), request.command.log):
                folder.move(path, path.with_stem(f"{request.name}-lost-{len(attempts)}"))
        hows = " and ".join(f"{process.side.upper()} was {process.how}" for process in lost)
        notice(f"{batch.label} is measured again: {hows}")
    return again
