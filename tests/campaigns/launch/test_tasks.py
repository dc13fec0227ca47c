"""Processors and output of the processes of a job."""

from __future__ import annotations

from cnnbench.base.job import Task
from cnnbench.campaigns import launch
from cnnbench.campaigns.launch import divide_cores
from cnnbench.campaigns.processes.child import ProcessResult


def test_processors_are_divided(cpus):
    cpus({8, 1, 2, 3, 9})
    assert divide_cores(2) == [{1, 2}, {3, 8, 9}]
    assert divide_cores(5) == [{1}, {2}, {3}, {8}, {9}]


def test_output_is_shown_in_whole_lines(tmp_path):
    process, shown = launch._JobProcess(Task("worker"), None, tmp_path / "log"), []
    for part in (b"first\nsec", b"ond", b" line\r\n", b" 10 %\r 20 %\n", b"la", b"st"):
        with open(process.log, "ab") as log:
            log.write(part)
        shown.append([line.removeprefix("[worker:0] ") for line in process.new_log_lines()])
    process.ended = ProcessResult(0, 1.0)
    assert shown == [["first"], [], ["second line"], ["20 %"], [], []]
    assert process.new_log_lines() == ["[worker:0] last"]
