"""``cnnbench [run] FLAGS``: one benchmark run."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from cnnbench.commands import interrupt_on_signals
from cnnbench.driver.console import Console
from cnnbench.errors import BenchmarkError, ExitCode
from cnnbench.flags import Params, parse_args
from cnnbench.flags.cluster import agreed_facts, job_of, settled, spared
from cnnbench.runtime.job import PS, Job
from cnnbench.runtime.supervisor import supervised
from cnnbench.text.progress import Messages, Progress


def main(argv: Sequence[str]) -> int:
    """Runs what the flags say.

    Args:
      argv: the flags, without the name of the command.

    Returns:
      The exit code of a run that has succeeded; every other way out is an exception
      that cnnbench.cli turns into a line and an exit code.
    """
    parsed = parse_args(argv)
    progress = Progress(sys.stderr, parsed.params.progress)
    messages = Messages(sys.stderr, progress)
    for notice in parsed.notices:
        messages.notice(notice)
    interrupt_on_signals()
    params = settled(parsed.params, os.environ, messages.notice)
    job = job_of(params)
    if job.serves:
        if job.task.job != PS or params.data_dir is None:  # a ps task needs no data
            from cnnbench.driver.plan import make_plan

            make_plan(params)  # which refuses what the chief refuses
        return lend(job, params, agreed_facts(params), messages)
    # Imported late: parsing and refusing flags must not wait for it.
    from cnnbench.driver.benchmark_cnn import BenchmarkCNN

    benchmark = BenchmarkCNN(
        params,
        command=["cnnbench", *argv],
        explicit_flags=parsed.explicit_flags,
        console=Console(sys.stdout, progress.clear),
        messages=messages,
        progress=progress,
    )
    supervised(benchmark.lost)
    benchmark.run()
    return ExitCode.OK


def lend(job: Job, params: Params, facts: Mapping[str, str], messages: Messages) -> int:
    """Lends this process to the chief of its job; nothing goes to standard output.

    Args:
      job: this process serves.
      params: of the run.
      facts: what all processes must have alike.
      messages: where notices go.

    Returns:
      0; every other way out is an exception.
    """
    from cnnbench.cluster.serve import serve
    from cnnbench.runtime.tensorflow import Settings

    name = str(job.task)
    how = serve(
        job,
        Settings.of(params),
        facts,
        params.cluster_timeout,
        lambda line: messages.notice(f"{name}: {line}"),
        lambda line: messages.plain(f"error: {name}: {line}"),
        spared(params),
    )
    if how.code == ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    if how.code != ExitCode.OK:
        raise BenchmarkError(f"{name}: {job.chief} failed: {how.reason}")
    return ExitCode.OK
