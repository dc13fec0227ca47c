"""``cnnbench strategies``: measure and compare the modes of --variable_update."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from cnnbench.base.interrupts import errors_as_interrupts
from cnnbench.base.tables import dataclasses_to_csv
from cnnbench.base.terminal import ChildProcessReporter
from cnnbench.campaigns.processes import configuration_identity
from cnnbench.campaigns.strategies import weights
from cnnbench.campaigns.strategies.session import (
    STRATEGIES,
    StrategiesSession,
    StrategyCase,
    has_failures,
    select_strategy_cases,
    strategies_document,
    table_text,
)
from cnnbench.campaigns.strategies.weights import weights_tolerance
from cnnbench.cli.commands import PlotFlags, choose_format
from cnnbench.cli.commands.campaign_flags import CampaignFlags
from cnnbench.cli.commands.command_lines import printing_resume_command
from cnnbench.errors import BenchmarkError, ExitCode
from cnnbench.flags import ACCEPTED, flag, flag_sections, parse_flags, specs_of, split_options
from cnnbench.judge.report.sections.strategies import modes_chart
from cnnbench.machine import facts as environment
from cnnbench.records.campaigns import StrategiesDocument, StrategyRow
from cnnbench.records.files import check_outputs

_ABOUT = """\
Usage: cnnbench strategies --model=NAME --num_gpus=N [FLAGS] [FLAGS OF A RUN]

Measures the modes of --variable_update side by side: every mode, and one device alone, once per
round in random order, each time in a fresh process. Prints a row for each: median images/sec,
overhead against one device, memory, start-up, numbers of variables and operations; and confirms
from checkpoints that the modes train the same weights (cnnbench docs strategies). The records are
DIR/MODE/rROUND.json, where DIR is --results; --plot draws median images/sec.

  cnnbench strategies --model=resnet50 --num_gpus=2
  cnnbench strategies --model=lenet --num_gpus=4 --modes=parameter_server,replicated --rounds=6
"""

_EXIT_CODES = """\
All flags of cnnbench run are accepted, too, for every process.

Exit codes: 0 done; 4 a process failed, or modes that should train the same weights do not (the
table is printed nevertheless); 2 wrong use; 130 interrupted: the table contains what was measured
(continue with --resume).
"""


@dataclass(frozen=True, kw_only=True)
class StrategiesFlags(PlotFlags, CampaignFlags):
    """Flags of `cnnbench strategies`."""

    modes: str = flag(
        "",
        "Modes of --variable_update to measure, comma-separated. If not given, all modes that "
        "work in one process with the given flags.",
    )
    rounds: int = flag(
        3,
        "Number of processes of each mode. With 6 or more, the table has 95 % intervals.",
        minimum=1,
        maximum=1000,
    )
    weights_steps: int = flag(
        3,
        "Number of steps after which weights and optimizer slots are compared, in a separate "
        "process for each mode, with a learning rate of 1e-6. With 0, nothing is compared.",
        minimum=0,
    )
    weights_tolerance: float | None = flag(
        None,
        "Largest difference of weights that are called equal, as a share of a variable's largest "
        "value; if not given 1e-4, with a 16-bit --precision 0.02.",
        minimum=0,
    )


_SPECS = specs_of(StrategiesFlags)
_ALL = (*_SPECS, *ACCEPTED.values())
_TITLES = {"modes": "What is compared", "timeout": "Processes, records and output"}
HELP = (_ABOUT, tuple(flag_sections(StrategiesFlags, _TITLES).items()), _EXIT_CODES)
TAKES_RUN_FLAGS = True


def main(argv: Sequence[str]) -> int:
    """Measures modes of --variable_update. Prints a table even after an interrupt or a failure."""
    values = parse_flags(argv, _ALL)
    options, of_runs = split_options(StrategiesFlags, choose_format(values, _SPECS))
    check_outputs(options.output_files, of_runs.get("plugin", ()))
    facts = environment.collect()
    on_gpu = bool(facts.get("gpu_names")) and of_runs.get("device") != "cpu"
    modes = [mode.strip() for mode in options.modes.split(",")] if options.modes else None
    cases, notices = select_strategy_cases(
        of_runs, modes, on_gpu=on_gpu, weights_steps=options.weights_steps
    )
    return _measure_modes(cases, notices, options, argv, facts)


def _measure_modes(
    cases: Sequence[StrategyCase],
    notices: Sequence[str],
    options: StrategiesFlags,
    argv: Sequence[str],
    facts: Mapping[str, Any],
) -> int:
    reporter = ChildProcessReporter(sys.stderr)
    plans = {case.name: configuration_identity(case.resolved) for case in cases}
    # Rounds may be added.
    policy = {"name": "modes", "modes": [*plans], "weights_steps": options.weights_steps}
    tolerance = options.weights_tolerance
    if tolerance is None:
        tolerance = weights_tolerance(cases[1].resolved.config["precision"])
    started_at = datetime.now(timezone.utc)
    with options.open_campaign(STRATEGIES, plans, policy, reporter, facts) as opened:
        folder, campaign, seed = opened
        folder.add_session_start()
        for notice in notices:
            reporter.notice(notice)
        reporter.notice(f"{len(cases) - 1} modes, seed {seed}, in {folder.folder}")
        session = StrategiesSession(cases, folder)
        ended_early: KeyboardInterrupt | BenchmarkError | None = None
        end: str | None = None
        distances: Mapping[str, weights.WeightDistance] = {}
        try:
            with (
                printing_resume_command(reporter, "strategies", argv, _ALL, results=folder.folder),
                errors_as_interrupts(),
            ):
                campaign.run_requests(session.requests(options.rounds, seed, options.timeout))
                known = weights.stored_weight_distances(folder)
                if known is None:
                    if (number := len(session.checkpoints)) > 1:
                        reporter.notice(f"comparing the weights of {number} modes")
                    known = weights.compare_and_remove(folder, session.checkpoints)
                distances = known
        except (KeyboardInterrupt, BenchmarkError) as error:
            if not any(session.records.values()):
                raise
            ended_early, end = error, str(error) or "interrupted"
        document = strategies_document(
            session,
            distances,
            tolerance,
            command=("cnnbench", "strategies", *argv),
            started_at=started_at,
            facts=facts,
            end=end,
            planned=options.rounds * len(cases),
        )
        _write_results(document, cases, options)
        folder.write(folder.folder / "strategies.json", document.to_json().encode("ascii"))
    if ended_early is not None:
        raise ended_early
    return ExitCode.FAILED if has_failures(document.rows) else ExitCode.OK


def _write_results(
    document: StrategiesDocument, cases: Sequence[StrategyCase], options: StrategiesFlags
) -> None:
    texts = {
        "table": lambda: table_text(document, cases),
        "csv": lambda: dataclasses_to_csv(StrategyRow, document.rows),
        "json": document.to_json,
    }
    options.write_output(texts, lambda: modes_chart(document))
