"""``cnnbench [run] FLAGS``: one benchmark run."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

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
        return _serve(job, params, messages)
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


def _serve(job: Job, params: Params, messages: Messages) -> int:
    """Lends this process to the chief of its job; nothing goes to standard output."""
    from cnnbench.cluster.serve import serve
    from cnnbench.driver.plan import make_plan
    from cnnbench.runtime.tensorflow import Settings

    if job.task.job != PS or params.data_dir is None:  # a ps task needs no data
        make_plan(params)  # which refuses what the chief refuses
    name = str(job.task)
    how = serve(
        job,
        Settings.of(params),
        agreed_facts(params),
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
