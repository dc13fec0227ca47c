"""``cnnbench sweep``: run a suite of configurations, each run in its own process."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cnnbench.base.document import Content, Paragraph
from cnnbench.base.document.console import sections_to_text
from cnnbench.base.terminal import ChildProcessReporter, print_result
from cnnbench.base.text import exact_number
from cnnbench.campaigns.launch import flags_to_arguments
from cnnbench.campaigns.processes import (
    Campaign,
    configuration_identity,
    flag_specs_of,
    own_command_prefix,
)
from cnnbench.campaigns.suite.entries import Suite, parse_suite
from cnnbench.campaigns.suite.nodes import find_suite, load_yaml_file, shipped_suites
from cnnbench.campaigns.sweep.plan import SweepItem, ordered_items, plan_sweep
from cnnbench.campaigns.sweep.run import SWEEP, Sweep, command_of_item, duration_text
from cnnbench.campaigns.sweep.summary import (
    configurations_table,
    detection_advice,
    exit_code,
    store_summary,
    summary_rows,
    table_text,
)
from cnnbench.cli.commands import write_or_print_output
from cnnbench.cli.commands.campaign_flags import CampaignFlags
from cnnbench.cli.commands.command_lines import (
    command_line_with_flags,
    printing_resume_command,
    refuse_flags_of_command,
)
from cnnbench.errors import ExitCode, UsageError
from cnnbench.flags import (
    ACCEPTED,
    flag,
    flag_sections,
    flag_texts,
    parse_command,
    parse_flags,
    specs_of,
    split_at_double_dash,
)
from cnnbench.machine import facts as environment
from cnnbench.machine import repository
from cnnbench.machine.cpu import Host
from cnnbench.machine.gpu import count_gpus

_ABOUT = """\
Usage: cnnbench sweep SUITE [FLAGS] [-- FLAGS OF EVERY RUN]

Runs a suite, each run in a separate process, in random order; writes one record per run into the
results directory and prints a summary. SUITE is a YAML file (cnnbench docs sweep) or the name of a
suite that is shipped with cnnbench; `cnnbench sweep` alone lists these. Flags after -- are added to
the flags of every run, as in: cnnbench sweep throughput -- --device=cpu --batch_size=4
"""

_EXIT_CODES = """\
Exit codes: 0 all runs succeeded and all bounds hold; 1 a bound is violated, even if other codes
apply; 4 a run failed (it is recorded, and the other runs continued); 3 a bound could not be judged;
2 wrong use; 130 interrupted: the table has what was measured (continue with --resume).
"""


@dataclass(frozen=True, kw_only=True)
class SweepFlags(CampaignFlags):
    """Flags of `cnnbench sweep`."""

    results: str = flag("results", "Folder for records, logs and the journal.", path="folder")
    filter: str | None = flag(
        None, "Only configurations whose name matches this regular expression."
    )
    repeats: int | None = flag(
        None,
        "Number of processes per configuration. If not given, the number in the suite, or as many "
        "processes as verdicts need.",
        minimum=1,
        maximum=1000,
    )
    timeout: float | None = flag(  # type: ignore[assignment]
        None,
        "Time limit of each process, in seconds. If not given, the time limit in the suite.",
        above=0,
    )
    list: bool = flag(False, "List the configurations and run nothing.")
    dry_run: bool = flag(
        False,
        "List the runs with their commands and run nothing. With --resume, list the runs that "
        "are left.",
    )


def argument_completions() -> tuple[str, ...]:
    """Names of the shipped suites, which shells propose as the first argument."""
    return shipped_suites()


_SPECS = specs_of(SweepFlags)
_TITLES = {"filter": "What is measured", "timeout": "Processes and records"}
HELP = (_ABOUT, tuple(flag_sections(SweepFlags, _TITLES).items()), _EXIT_CODES)


def main(argv: Sequence[str]) -> int:
    """Runs a suite. If it raises UsageError, nothing has been run."""
    words, behind = split_at_double_dash(argv)
    values, arguments = parse_command(words, _SPECS)
    options = SweepFlags(**values)
    refuse_flags_of_command(behind, _SPECS, "sweep SUITE")
    specs = {**flag_specs_of("allreduce"), **ACCEPTED}
    for_all = flag_texts(parse_flags(behind, specs.values()), specs)
    if len(arguments) != 1:
        several = f"one suite, not {len(arguments)}" if arguments else "a suite"
        raise UsageError(f"sweep takes {several}: {', '.join(shipped_suites())}, or a YAML file")
    facts = environment.collect()
    suite = parse_suite(load_yaml_file(find_suite(arguments[0])))
    suite = suite.with_settings(options.repeats, options.timeout)
    plan = plan_sweep(suite, facts, for_all, options.filter, repository.measured_code(for_all))
    reporter = ChildProcessReporter(sys.stderr)
    for notice in plan.notices:
        reporter.notice(notice)
    scaled = _cpu_command(suite, words, options, for_all)
    if scaled:
        reporter.notice(
            f"{suite.name} is a suite for GPUs, and this machine has no usable GPU; to run it on "
            f"CPUs: {scaled}"
        )
    is_resumed = options.resume and not options.list and Path(options.results).is_dir()
    if is_resumed or not (options.list or options.dry_run):
        # A resumed sweep may have more configurations and repeats.
        plans = {case.name: configuration_identity(case.resolved) for case in plan.cases}
        policy = {"name": "rounds", "suite": plan.suite}
        with options.open_campaign(SWEEP, plans, policy, reporter, facts) as opened:
            program, command = own_command_prefix(), ("cnnbench", "sweep", *argv)
            sweep = Sweep(plan, *opened, program, command)
            if not options.dry_run:
                return _run_sweep(sweep, options, argv)
            blocks = list(_command_blocks(sweep.announce_items()))
    else:
        items = ordered_items(plan.cases, options.resolve_seed(SWEEP, options.results, plan.suite))
        reporter.notice(duration_text(items, Campaign(reporter, facts)))
        blocks = [configurations_table(plan.cases)] if options.list else [*_command_blocks(items)]
    print_result(sections_to_text([blocks]))
    return ExitCode.OK


def _cpu_command(
    suite: Suite, words: Sequence[str], options: SweepFlags, for_all: Mapping[str, str]
) -> str:
    """The command line that scales a suite for GPUs to this machine without GPUs; "" if not
    necessary.
    """
    on_cpu = suite.on_cpu
    if on_cpu is None or "device" in for_all or count_gpus(Host()):
        return ""
    chosen = [f"--filter={on_cpu.filter}"] if on_cpu.filter and options.filter is None else []
    flags = {**{name: node.text for name, node in on_cpu.flags.items()}, **for_all}
    return shlex.join(["cnnbench", "sweep", *words, *chosen, "--", *flags_to_arguments(flags)])


def _command_blocks(items: Sequence[SweepItem]) -> Iterator[Content]:
    for number, item in enumerate(items, start=1):
        limit = exact_number(item.case.entry.timeout)
        yield Paragraph(f"# {number} {item.label}, at most {limit} s", whole=True)
        words = (*own_command_prefix(), *command_of_item(item))
        yield Paragraph(shlex.join(words), whole=True)


def _run_sweep(sweep: Sweep, options: SweepFlags, argv: Sequence[str]) -> int:
    plan, reporter = sweep.plan, sweep.campaign.reporter
    folder = {"results": options.results}

    def known() -> str:
        rows = summary_rows(plan.cases, sweep.results)
        return table_text(rows, plan.refused) if rows else ""

    with printing_resume_command(reporter, "sweep", argv, _SPECS, known, **folder):
        sweep.run()
    rows = summary_rows(plan.cases, sweep.results)
    store_summary(sweep.store, plan.suite, rows, plan.refused)
    write_or_print_output(None, table_text(rows, plan.refused))
    advised = detection_advice(
        rows,
        plan.cases,
        lambda repeats: command_line_with_flags(
            "sweep", argv, _SPECS, **folder, resume=True, repeats=repeats
        ),
    )
    if advised:
        reporter.notice(advised)
    return exit_code(rows)
