"""``cnnbench allreduce``: measure and check reductions between devices, without training."""

from __future__ import annotations

import dataclasses
import io
import sys
from collections.abc import Sequence
from functools import partial

from cnnbench.base.shared import SharedValue
from cnnbench.base.terminal import LineWriter, MessageWriter, ProgressLine
from cnnbench.cli.running import serve_devices
from cnnbench.errors import BenchmarkError, ExitCode
from cnnbench.flags import (
    Params,
    check_obsolete_flags,
    flag_sections,
    parse_flags,
    split_options,
)
from cnnbench.flags.groups.all_reduce import ALL_REDUCE_FLAGS, ALL_REDUCE_TITLES, AllReduceParams
from cnnbench.lab.all_reduce.plan import (
    WITHOUT_EFFECT,
    make_plan,
    plan_training_run,
    translate_flags,
)
from cnnbench.lab.all_reduce.session import AllReduceBenchmark, write_final_record
from cnnbench.plan import digest_of_value, facts_to_agree_on
from cnnbench.records.result_files import REDUCTIONS, ResultFiles
from cnnbench.run.driver.membership import JobMembership
from cnnbench.run.runtime.devices import register_early_setup
from cnnbench.run.runtime.supervisor import fork_supervised

_ACCEPTED = {spec.name: spec for spec in (*WITHOUT_EFFECT, *ALL_REDUCE_FLAGS)}

_ABOUT = """\
Usage: cnnbench allreduce [FLAGS]

Reduces tensors between devices, checks every sum, and prints a row for each size, number of
devices, algorithm and packing: median and p99 time of one reduction (the longest time if there are
fewer than 100 calls), bandwidths as nccl-tests defines them, wrong elements, and the share of the
speed that copying memory would allow; then the fastest row for each size.
The page cnnbench docs all_reduce_benchmark explains every column. Other flags of cnnbench run have
no effect. Exit code 4 if any sum is wrong or any row fails.

  cnnbench allreduce --device=cpu --num_gpus=2,4 --sizes=64K:16M:x4
  cnnbench allreduce --model=resnet50 --all_reduce_spec=copy,xring#2,pscpu:32K:xring \\
      --gradient_repacking=0,8 --result_json=allreduce.json
  cnnbench launch --workers=2 -- allreduce --num_gpus=1 --sizes=64K:16M:x4
"""


HELP = (_ABOUT, [*flag_sections(AllReduceParams, ALL_REDUCE_TITLES).items()])


def main(argv: Sequence[str]) -> int:
    """Measures all-reduces. Raises an exception for wrong sums."""
    values = translate_flags(parse_flags(argv, _ACCEPTED.values()))
    params, others = split_options(AllReduceParams, values)
    progress = ProgressLine(sys.stderr, params.progress)
    messages = MessageWriter()
    for notice in check_obsolete_flags(others):
        messages.notice(notice)
    explicit = [n for n, v in values.items() if n not in others or v or v != _ACCEPTED[n].default]
    results = ResultFiles(params.result_json, params.result_csv, REDUCTIONS)
    first_record = SharedValue()  # The record before the process begins to measure.

    def complete_record_at_exit(error: BenchmarkError | None) -> None:
        record = first_record.get()
        if record is not None:
            write_final_record(record, results, error, messages)

    in_run = partial(plan_training_run, params, max(params.num_gpus, default=1), None)
    register_early_setup(partial(fork_supervised, complete_record_at_exit), Params(), in_run)
    plan, facts = make_plan(params, explicit), {}
    if plan.job.in_cluster:
        facts = facts_to_agree_on(vars(params), ALL_REDUCE_FLAGS)
        facts["digest of the tensors"] = digest_of_value(plan.workloads)
    if plan.job.is_server_only:
        return serve_devices(plan.run, facts, messages)

    def report_lost_worker(message: str) -> None:
        bench.write_early_end_record(BenchmarkError(message))
        messages.error(message)

    if not plan.job.is_chief:
        # Only the chief prints and writes results. A worker prints its own fatal error.
        params = dataclasses.replace(plan.params, result_json=None, result_csv=None)
        plan = dataclasses.replace(plan, params=params)
        progress = ProgressLine.silent()
    bench = AllReduceBenchmark(
        plan,
        LineWriter(sys.stdout if plan.job.is_chief else io.StringIO()),
        command=["cnnbench", "allreduce", *argv],
        explicit_flags=explicit,
        messages=messages if plan.job.is_chief else MessageWriter.silent(),
        progress=progress,
        membership=JobMembership(plan.run, messages.notice, report_lost_worker, facts),
    )
    if plan.job.is_chief:
        first_record.set(bench.make_record("interrupted"))
    fork_supervised(complete_record_at_exit)
    bench.run()
    return ExitCode.OK
