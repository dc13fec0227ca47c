"""``cnnbench [run] FLAGS``: one benchmark run."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence

from cnnbench.base.jobs.job import PS, Job
from cnnbench.base.text.numbers import duration
from cnnbench.base.text.progress import Messages, Progress
from cnnbench.base.text.terminal import is_terminal
from cnnbench.cli.commands import interrupt_on_signals
from cnnbench.errors import BenchmarkError, ExitCode
from cnnbench.flags import Params, parse_args
from cnnbench.flags.cluster import agreed_facts, with_exchanged_addresses
from cnnbench.run.driver.console import Console
from cnnbench.run.runtime.supervisor import supervised


def main(argv: Sequence[str]) -> int:
    """Runs the benchmark that the flags describe; a run that fails raises an exception."""
    parsed = parse_args(argv)
    progress = Progress(sys.stderr, parsed.params.progress)
    messages = Messages(sys.stderr, progress)
    for notice in parsed.notices:
        messages.notice(notice)
    if not argv and is_terminal(sys.stderr):
        messages.notice(_without_flags(parsed.params))
    interrupt_on_signals()
    params = with_exchanged_addresses(parsed.params, os.environ, messages.notice)
    job = params.job
    if job.serves:
        if job.task.job == PS:  # it needs no flags but the addresses
            return lend(job, params, agreed_facts(params, ()), messages)
        from cnnbench.run.driver.plan import make_plan

        make_plan(params)  # refuses the same flags as the chief
        return lend(job, params, agreed_facts(params), messages)
    # Imported late: parsing and refusing flags should not take its import time.
    from cnnbench.run.driver.benchmark_cnn import BenchmarkCNN

    benchmark = BenchmarkCNN(
        params,
        command=["cnnbench", *argv],
        explicit_flags=parsed.explicit_flags,
        console=Console(sys.stdout, progress.clear),
        messages=messages,
        progress=progress,
    )
    supervised(benchmark.lost, benchmark.share, benchmark.longest_step)
    benchmark.run()
    return ExitCode.OK


# Rough estimates: seconds to load TensorFlow, FLOP/s of a core, bytes of input per second.
_START_SECONDS, _CORE_FLOPS, _INPUT_BYTES = 10.0, 2e10, 5e8


def _without_flags(params: Params) -> str:
    """Description and estimated duration of a run without flags on a CPU."""
    from cnnbench.run.driver.plan import make_plan

    plan = make_plan(params)
    images = plan.global_batch * (plan.warm_up.least + plan.num_batches)
    shapes = [[n for n in one.shape if isinstance(n, int)] for one in plan.examples]
    size = sum(4 * math.prod(shape) for shape in shapes)
    cores = os.cpu_count() or 1
    seconds = _START_SECONDS + images * size / _INPUT_BYTES
    seconds += images * plan.spec.training_flops_per_image / (_CORE_FLOPS * cores)
    return (
        f"no flags: trains {plan.model.name} on synthetic {plan.dataset.name}, "
        f"{plan.warm_up.least} warm-up and {plan.num_batches} timed steps of {plan.global_batch} "
        f"images; about {duration(seconds)} on idle CPUs, less on a GPU. cnnbench run "
        "--help lists the flags, cnnbench models the networks; Ctrl-C ends it"
    )


def lend(job: Job, params: Params, facts: Mapping[str, str], messages: Messages) -> int:
    """Runs a TensorFlow server for the chief; nothing goes to standard output.

    The facts must be equal in all processes.
    """
    from cnnbench.run.driver.membership import Membership
    from cnnbench.run.runtime.tensorflow import Settings

    name = str(job.task)
    membership = Membership(
        job,
        params,
        lambda line: messages.notice(f"{name}: {line}"),
        lambda line: messages.error(f"{name}: {line}"),
        facts,
    )
    how = membership.serve(Settings.of(params, job))
    if how.code == ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    if how.code != ExitCode.OK:
        raise BenchmarkError(f"{name}: {job.chief} failed: {how.reason}")
    return ExitCode.OK
