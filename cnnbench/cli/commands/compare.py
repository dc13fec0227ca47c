"""``cnnbench compare``: judge two sets of run records: faster, slower, same or unknown."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cnnbench.base.terminal import print_notice
from cnnbench.campaigns.ab.sessions import ExperimentState
from cnnbench.cli.commands import choose_format, declare_quiet_flag
from cnnbench.cli.commands.command_lines import flag_words
from cnnbench.cli.commands.judging import (
    JudgingFlags,
    load_records_of_side,
    warn_of_skipped_files,
    warn_of_unknown_commits,
)
from cnnbench.cli.commands.next_steps import (
    add_next_command,
    comparing_command,
    experiment_of_records,
    further_analysis_planner,
)
from cnnbench.errors import UsageError
from cnnbench.flags import flag, parse_command, specs_of
from cnnbench.judge.compare import Comparison, Loaded, compare_records
from cnnbench.judge.compare.comparability import check_fact_names
from cnnbench.judge.metrics.rules import Rules


@dataclass(frozen=True, kw_only=True)
class CompareFlags(JudgingFlags):
    """Flags of `cnnbench compare`."""

    paired: bool | None = flag(
        None,
        "Compare runs in pairs: the pairs of cnnbench ab. For other records, the i-th run of BASE "
        "and the i-th run of NEW, by start time, are a pair. If not given: in pairs if the "
        "records name pairs.",
    )
    quiet_conditions: str = declare_quiet_flag()


_ABOUT = """\
Usage: cnnbench compare BASE NEW [FLAGS]

Compares saved records, configuration by configuration, one value per process. BASE and NEW
are each a record (--result_json), a folder with all *.json below it, or a quoted pattern. Runs
are judged by their throughput. For all-reduces (cnnbench allreduce), every row of the table is a
separate configuration, judged by its bus bandwidth. The page cnnbench docs compare explains the
verdicts: faster, slower, same, not slower, not faster, inconclusive, not measured, changed work,
not comparable, missing, failed. At least 4 runs of each are needed. Measure BASE and NEW
alternately, as cnnbench ab does.
"""

_EXIT_CODES = """\
Exit codes: 0 none of the following; 1 a regression or changed work, or what --fail_on names, even
if other codes apply; 4 a run failed; 3 undecided: inconclusive, not measured, not comparable,
missing in BASE or NEW, or a faulty file was skipped; 2 wrong use.
"""


HELP = (_ABOUT, [("Flags", specs_of(CompareFlags))], _EXIT_CODES)


def main(argv: Sequence[str]) -> int:
    """Compares saved records and prints the verdicts."""
    values, arguments = parse_command(argv, specs_of(CompareFlags))
    if len(arguments) != 2:
        raise UsageError(
            f"cnnbench compare takes two arguments, BASE and NEW, not {len(arguments)}; "
            "quote patterns, so that the shell does not expand them"
        )
    options = CompareFlags(**choose_format(values, specs_of(CompareFlags)))
    options.check_values(arguments)
    experiment, rules = experiment_of_records(*arguments), options.load_rules()
    sides = [load_records_of_side(path) for path in arguments]
    comparison = _compare_sides(sides, arguments, options, experiment, rules)
    warn_of_skipped_files(comparison.skipped)
    earlier = experiment if experiment is not None and experiment.is_resumable else None
    settings = None if experiment is None else experiment.experiment
    allowing = comparing_command(comparison, settings, ("compare", *argv))
    judging = flag_words(values, specs_of(JudgingFlags), ("format", "output"))
    comparison, commands = add_next_command(comparison, earlier, allowing, judging)
    if options.format == "html" and not comparison.next_step:
        repeat = shlex.join(("cnnbench", "compare", *argv))
        comparison = replace(comparison, repeat=repeat)
    options.write_comparison(comparison, [record for side in sides for record in side.allreduces])
    for line in commands:
        print_notice(line)
    return comparison.exit_code


def _compare_sides(
    sides: Sequence[Loaded],
    paths: Sequence[str],
    options: CompareFlags,
    experiment: ExperimentState | None,
    rules: Rules,
) -> Comparison:
    """Compares the records of BASE and NEW, which were read from `paths`."""
    base, new = sides
    check_fact_names(options.allowed_differences, base.all_records, new.all_records)
    warn_of_unknown_commits(record.subject for record in (*base.all_records, *new.all_records))
    skipped = (*base.skipped, *new.skipped)
    criteria = replace(
        options.criteria(rules),
        paired=options.paired,
        looks=() if experiment is None else experiment.past_analyses,
        plan=(
            experiment.further_schedule
            if experiment is not None and experiment.is_resumable
            else further_analysis_planner(options.policy)
        ),
    )
    return compare_records(
        base.all_records,
        new.all_records,
        criteria,
        labels=(paths[0], paths[1]),
        skipped=tuple({file.path: file for file in skipped}.values()),
    )
