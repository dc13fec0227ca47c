"""``cnnbench tune``: find the fastest flags for a network, and prove them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cnnbench.base import plugins
from cnnbench.base.terminal import ChildProcessReporter
from cnnbench.base.text import count_text, format_duration, unknown_name_reason
from cnnbench.campaigns.ab.pairing import choose_slice_seconds
from cnnbench.campaigns.ab.side import RESERVED
from cnnbench.campaigns.processes import configuration_identity
from cnnbench.campaigns.tune import texts
from cnnbench.campaigns.tune.bench import MOST_MINUTES, TUNE, RaceBenchmark, SearchSettings
from cnnbench.campaigns.tune.search import document_so_far, run_search
from cnnbench.campaigns.tune.space import (
    ALLOWABLE,
    Candidate,
    SearchSpace,
    Settings,
    search_groups,
)
from cnnbench.cli.commands import choose_format, declare_output_flag, write_or_print_output
from cnnbench.cli.commands.ab_flags import AbFlags
from cnnbench.cli.commands.campaign_flags import CampaignFlags
from cnnbench.cli.commands.command_lines import (
    printing_resume_command,
    refuse_flags_of_command,
    replace_flags,
)
from cnnbench.errors import ExitCode, FlagError
from cnnbench.flags import (
    ACCEPTED,
    FLAGS,
    FlagSpec,
    RunPart,
    args_from_values,
    flag,
    flag_sections,
    names_of_flags,
    parse_flags,
    redeclare_flag,
    specs_of,
    split_at_double_dash,
    split_comma_separated,
    split_options,
)
from cnnbench.judge.compare import Policy
from cnnbench.machine import facts as machine
from cnnbench.machine.cpu import read_memory_capacity
from cnnbench.machine.gpu import least_free_gpu_memory
from cnnbench.plan import ADDRESSES, refuse_files_of_run
from cnnbench.records.campaigns import OPEN, TuneDocument
from cnnbench.records.files import OutputFile, check_outputs, write_text

_ABOUT = """\
Usage: cnnbench tune --model=NAME [FLAGS] [FLAGS OF A RUN] [-- FLAGS OF A RUN]

Finds the fastest flags for one network on this machine, and proves that they are faster than the
given flags (cnnbench docs tune). All candidates run in rounds of short processes, and candidates
that are clearly slower are eliminated. The fastest one is then measured in pairs against the given
flags. Given flags of runs do not vary.

  cnnbench tune --model=lenet --device=cpu --batch_size=32 --minutes=5
  cnnbench tune --model=resnet50 --num_gpus=8 --minutes=30
  cnnbench tune --model=resnet50 --num_gpus=8 --allow=precision --write_flagfile=fast.flags
  cnnbench tune --model=lenet --num_gpus=2 --list
"""

_EXIT_CODES = """\
All flags of cnnbench run are accepted, too, for every process.

Exit codes: 0 the printed flags are proven to be faster than the given flags, or the given flags are
at least as fast as all candidates; 3 a candidate led the races, but is not proven to be faster, or
no candidate was tried; 4 a process with the given flags failed; 2 wrong use; 130 interrupted: the
table has what the races have measured (continue with --resume).
"""


@dataclass(frozen=True, kw_only=True)
class TuneFlags(CampaignFlags):
    """Flags of `cnnbench tune`."""

    minutes: float = flag(
        30.0,
        "Approximate time of the whole search, in minutes.",
        above=0.0,
        maximum=MOST_MINUTES,
    )
    allow: str = flag(
        "",
        "Settings that may vary, although they change the result of the training, "
        "comma-separated: precision, batch_size, consistency, gradient_reduction, environment "
        "(variables that change rounding).",
        known=lambda: ALLOWABLE,
    )
    threshold: float = flag(
        1.0,
        "Smallest relevant gain, in per cent.",
        minimum=0.0,
        below=1000.0,
    )
    list: bool = flag(
        False, "List the candidates, and the refused candidates with reasons; run nothing."
    )
    pairing: str = redeclare_flag(
        AbFlags,
        "pairing",
        help="How processes share the time. turns: several processes are started, and one runs "
        "steps for 0.3 s while the other processes wait. alternate: one process runs after the "
        "other. auto: turns if possible.",
    )
    resume: bool = redeclare_flag(
        CampaignFlags,
        "resume",
        help="Continue the search in --results. No process runs again, and --minutes is as before.",
    )
    write_flagfile: str | None = flag(
        None, "Write the best flags to this file, for --flagfile=FILE.", path="file"
    )
    format: str = flag("table", "What to print.", choices=("table", "json"))
    output: str | None = declare_output_flag(
        "Write the output to this file. Its ending names the format if --format is not given."
    )


_OWN = specs_of(TuneFlags)
_PROCESSES = "Processes, records and output"
_TITLES = {"minutes": "What is tried", "timeout": _PROCESSES, "format": _PROCESSES}
HELP = (_ABOUT, tuple(flag_sections(TuneFlags, _TITLES).items()), _EXIT_CODES)
TAKES_RUN_FLAGS = True

_OF_JOBS = "cannot be used with tune, whose runs have one process"
_REFUSED = {
    **dict.fromkeys(
        ("export_dir", *names_of_flags(FLAGS, RunPart.PROFILE)),
        "cannot be used with tune: every process would write there",
    ),
    **dict.fromkeys(RESERVED, "is set by the command: every process keeps its own files"),
    **dict.fromkeys(
        names_of_flags(FLAGS, RunPart.NO_TIMED_STEPS),
        "cannot be used with tune, which times training steps",
    ),
    **dict.fromkeys(ADDRESSES, _OF_JOBS),
}


def main(argv: Sequence[str]) -> int:
    """Searches for the fastest flags. If it raises UsageError, nothing has been run."""
    before, behind = split_at_double_dash(argv)
    values = choose_format(parse_flags(before, (*_OWN, *ACCEPTED.values())), _OWN)
    options, run_flags = split_options(TuneFlags, values)
    refuse_flags_of_command(behind, _OWN, "tune")
    run_flags.update(parse_flags(behind, ACCEPTED.values()))
    _check_options(options, run_flags)
    facts: Mapping[str, Any] = machine.collect()
    plugins.load_plugins_of_flags(run_flags)
    on_gpu = bool(facts.get("gpu_names")) and run_flags.get("device") != "cpu"
    if not on_gpu and run_flags.get("device", "auto") == "auto":
        # With --device=cpu, candidates that need GPUs are dropped instead of failing.
        run_flags["device"] = "cpu"
    space = _make_space(options, run_flags, on_gpu)
    as_given = space.make_candidate({})
    cpus = int(facts.get("usable_cpus") or facts.get("logical_cpus") or 1)
    groups = search_groups(space, as_given, on_gpu=on_gpu, cpus=cpus)
    if options.list:
        write_or_print_output(options.output, texts.candidates_text(space, as_given, groups))
        return ExitCode.OK
    return _run_search(options, space, as_given, groups, facts, argv)


def _check_options(options: TuneFlags, run_flags: Mapping[str, Any]) -> None:
    for word in split_comma_separated(options.allow):
        if word not in ALLOWABLE:
            reason = unknown_name_reason(word, ALLOWABLE, "takes one or more of")
            raise FlagError("allow", word, reason)
    for name, reason in _REFUSED.items():
        if run_flags.get(name):
            raise FlagError(name, ACCEPTED[name].text(run_flags[name]), reason)
    if run_flags.get("cluster", "flags") != "flags":
        raise FlagError("cluster", run_flags["cluster"], _OF_JOBS)
    if options.list and options.write_flagfile is not None:
        reason = "is written after a search; --list runs nothing"
        raise FlagError("write_flagfile", options.write_flagfile, reason)
    outputs = [
        OutputFile("output", options.output),
        OutputFile("write_flagfile", options.write_flagfile),
    ]
    check_outputs(outputs)
    refuse_files_of_run(outputs, run_flags)


def _make_space(options: TuneFlags, run_flags: Mapping[str, Any], on_gpu: bool) -> SearchSpace:
    memory = read_memory_capacity()
    if on_gpu:
        memory = least_free_gpu_memory(per_card=run_flags.get("gpus_per_card", 1))
    allowed = frozenset(split_comma_separated(options.allow))
    return SearchSpace(args=args_from_values(run_flags), allowed=allowed, memory=memory)


def _run_search(
    options: TuneFlags,
    space: SearchSpace,
    as_given: Candidate,
    groups: Mapping[str, Sequence[Settings]],
    facts: Mapping[str, Any],
    argv: Sequence[str],
) -> int:
    reporter, resolved = ChildProcessReporter(sys.stderr), as_given.resolved
    specs = (*_OWN, *ACCEPTED.values())
    otherwise = "processes run one after the other"
    turn_seconds = choose_slice_seconds(
        options.pairing, lambda: resolved.no_turns, reporter, otherwise
    )
    plans = {"": configuration_identity(resolved, flags=dict(space.given_texts))}
    policy = {
        "name": "races",
        "space": groups,
        "allow": sorted(space.allowed),
        "threshold": options.threshold,
        "minutes": options.minutes,
        "turns": bool(turn_seconds),
    }
    with options.open_campaign(TUNE, plans, policy, reporter, facts) as (folder, campaign, seed):
        settings = SearchSettings(
            space=space,
            as_given=as_given,
            groups=groups,
            policy=Policy().replace(threshold=options.threshold / 100),
            seconds=60 * options.minutes,
            command=("cnnbench", "tune", *argv),
            timeout=options.timeout,
            memory=read_memory_capacity(),
            seed=seed,
            turn_seconds=turn_seconds,
        )
        for notice in resolved.notices:
            reporter.notice(notice)
        choices = sum(map(len, groups.values()))
        reporter.notice(
            f"{count_text(choices, 'combination', 'combinations')} of settings in "
            f"{count_text(len(groups), 'group', 'groups')}, about "
            f"{format_duration(settings.seconds)}, seed {seed}, in {folder.folder}"
        )
        bench = RaceBenchmark(folder, campaign, settings)

        def known() -> str:
            document = document_so_far(bench)
            return "" if document is None else _output_text(document, options)

        with printing_resume_command(reporter, "tune", argv, specs, known, results=folder.folder):
            outcome = campaign.run_requests(run_search(bench))
    if outcome.enough_minutes is not None:
        line = _longer_search(argv, specs, outcome.enough_minutes)
        reporter.notice(f"to search again with more time: {line}")
    return _write_outcome(outcome, options, reporter)


def _longer_search(argv: Sequence[str], specs: Sequence[FlagSpec], minutes: float) -> str:
    """The command line of a new search that takes longer."""
    replaced = ("minutes", "results", "resume")
    words = replace_flags(argv, specs, replaced, [f"--minutes={minutes}"])
    return shlex.join(["cnnbench", "tune", *words])


def _output_text(outcome: TuneDocument, options: TuneFlags) -> str:
    return outcome.to_json() if options.format == "json" else texts.table_text(outcome)


def _write_outcome(
    outcome: TuneDocument, options: TuneFlags, reporter: ChildProcessReporter
) -> int:
    if options.write_flagfile is not None:
        write_text("write_flagfile", options.write_flagfile, texts.flag_file_text(outcome))
        if variables := texts.command_variables(outcome):
            reporter.notice(
                f"{options.write_flagfile} contains only flags; also set the environment: "
                f"export {' '.join(variables)}"
            )
    write_or_print_output(options.output, _output_text(outcome, options))
    if outcome.failure:
        reporter.error(outcome.failure)
        return ExitCode.FAILED
    return ExitCode.INCONCLUSIVE if outcome.verdict == OPEN else ExitCode.OK
