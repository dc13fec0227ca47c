"""``cnnbench explain``: name layers and causes that make B slower or faster than A."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cnnbench.base.document.console import sections_to_text
from cnnbench.base.document.markdown import sections_to_comment
from cnnbench.base.files import converting_parse_errors, read_json
from cnnbench.base.terminal import ChildProcessReporter
from cnnbench.campaigns.ab.explain import PROFILES_OF_SIDES, SUFFIX, AbProfiler
from cnnbench.campaigns.processes import Campaign, ResultsFolder
from cnnbench.cli.commands import (
    choose_format,
    declare_output_flag,
    write_or_print_output,
)
from cnnbench.cli.commands.ab_flags import AbFlags
from cnnbench.cli.commands.campaign_flags import results_folder
from cnnbench.cli.commands.command_lines import (
    VARIABLES,
    command_line_with_flags,
    split_command_and_run_flags,
)
from cnnbench.cli.commands.launch import JobLayoutFlags
from cnnbench.cli.commands.sides import SideFlags, open_sides
from cnnbench.errors import ExitCode, FlagError, PathError, UsageError
from cnnbench.flags import flag, flag_sections, redeclare_flag, specs_of
from cnnbench.judge.explain import explain
from cnnbench.judge.explain.blocks import explanation_sections
from cnnbench.machine import facts
from cnnbench.plan import refuse_files_of_run
from cnnbench.records.explanation import Explanation
from cnnbench.records.files import OutputFile, check_outputs
from cnnbench.records.profiles import StepProfile

_ABOUT = """\
Usage: cnnbench explain [--a=FLAGS] [--b=FLAGS] [FLAGS] -- FLAGS OF BOTH A AND B
       cnnbench explain A B [FLAGS]

Explains why a step of B takes more or less time than a step of A: profiles processes of A and B,
one after the other, compares their steps by layer, kind of operation and direction (forward or
backward), and names the causes that exceed the noise (cnnbench docs explain). If A and B use oneDNN
on CPUs, two short processes log which oneDNN kernels a step calls. If A and B are arguments, they
are existing profiles: files of cnnbench run --profile_json, or folders of such files.

  cnnbench explain --b=--precision=bf16 -- --model=lenet --device=cpu --batch_size=8
  cnnbench explain --a_checkout=main --b_checkout=. -- --plugin=bench/nets.py --model=ours
  cnnbench explain DIR/explain/a DIR/explain/b      # profiles of cnnbench ab --results=DIR
  cnnbench explain a.json b.json --format=json
"""

_EXIT_CODES = """\
Exit codes: 0 done, whatever was found; 2 wrong use; 4 a process failed, or A or B cannot be
profiled; 130 interrupted.
"""


@dataclass(frozen=True, kw_only=True)
class ExplainFlags(JobLayoutFlags, SideFlags):
    """Flags of `cnnbench explain`."""

    rounds: int = flag(
        3,
        "Number of processes of A and of B. With 2 or more, their variation is taken into account.",
        minimum=1,
        maximum=100,
    )
    steps: int = flag(
        20,
        "Number of profiled steps of each process. The same number of steps is not profiled.",
        minimum=2,
        maximum=1000,
    )
    cool_down: float = redeclare_flag(AbFlags, "cool_down")
    timeout: float = redeclare_flag(AbFlags, "timeout")
    results: str | None = redeclare_flag(AbFlags, "results")
    rows: int = flag(
        10, "Number of rows to print; 0 prints all. JSON contains all rows.", minimum=0
    )
    format: str = flag("table", "What to print.", choices=("table", "markdown", "json"))
    output: str | None = declare_output_flag(
        "Write the output to this file; the table goes to stdout. The ending of the file names the "
        "format if --format is not given."
    )


_TITLES = {
    "a": "What A and B are",
    "rounds": "How it is profiled",
    "rows": "How it is printed",
}
_SECTIONS = flag_sections(ExplainFlags, _TITLES)
HELP = (_ABOUT, tuple(_SECTIONS.items()), _EXIT_CODES)


def main(argv: Sequence[str]) -> int:
    """Explains why a step of B is faster or slower than a step of A. If it raises UsageError,
    nothing has been run.
    """
    values, paths, common = split_command_and_run_flags(argv, specs_of(ExplainFlags), "explain ...")
    options = ExplainFlags(**choose_format(values, specs_of(ExplainFlags)))
    if paths and len(paths) != 2:
        raise UsageError(
            f"cnnbench explain takes two profiles, of A and of B, not {len(paths)}; to profile "
            "A and B now, give no files, and put the flags of both after --"
        )
    profiles = [str(file) for path in paths for file in _profile_files(path)]
    check_outputs([OutputFile("output", options.output)], profiles)
    if paths:
        shown = (*(spec.name for spec in _SECTIONS["How it is printed"]), *VARIABLES)
        for name in (name for name in values if name not in shown):
            raise FlagError(
                name, values[name], "has an effect only on new processes, but A and B are profiles"
            )
        if common or any(options.environment_variables.values()):
            raise UsageError("A and B are profiles: leave out flags after --, --a_env and --b_env")
        base, new = map(_load_profiles, paths)
        explanation = explain(base, new, (f"A: {paths[0]}", f"B: {paths[1]}"))
    else:
        explanation = _explain(options, common)
    sections = explanation_sections(explanation, options.rows)
    table = partial(sections_to_text, sections)
    texts: dict[str, Callable[[], str]] = {
        "table": table,
        "markdown": lambda: sections_to_comment(sections, "cnnbench: why"),
        "json": explanation.to_json,
    }
    write_or_print_output(options.output, texts[options.format](), table)
    return ExitCode.OK


def _profile_files(text: str) -> list[Path]:
    """The path itself or, of a folder, the files in it that contain profiles. Raises PathError if
    the folder cannot be read.
    """
    path = Path(text)
    try:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
    except OSError as error:
        raise PathError(text, f"cannot be read: {error.strerror or error}") from None
    return [file for file in files if file == path or file.suffix in (SUFFIX, ".json")]


def _load_profiles(text: str) -> list[StepProfile]:
    """Reads the profiles in a file or a folder. Raises PathError if there are none."""
    profiles = []
    for file in _profile_files(text):
        with converting_parse_errors(file, "a profile"):
            profiles.append(StepProfile.from_dict(read_json(file)))
    if not profiles:
        raise PathError(text, "no profiles; cnnbench run --profile_json=FILE writes one")
    return profiles


def _explain(options: ExplainFlags, common: Sequence[str]) -> Explanation:
    reporter = ChildProcessReporter(sys.stderr)
    layout = options.multi_process_layout
    with open_sides(options, layout, common, reporter, refuse_equal=True) as both:
        for side in both.values():
            output = OutputFile("output", options.output)
            refuse_files_of_run([output], side.given_flags)
        name = results_folder(options.results, "explain")
        with ResultsFolder(PROFILES_OF_SIDES, name) as results:
            campaign = Campaign(reporter, facts.collect(), options.cool_down)
            explanation = AbProfiler(
                sides=both,
                results=results,
                campaign=campaign,
                rounds=options.rounds,
                steps=options.steps,
                timeout=options.timeout,
            ).explain(store=True)
        words = (f"{name}/a", f"{name}/b")
        shown = {} if options.rows == ExplainFlags.rows else {"rows": options.rows}
        again = command_line_with_flags("explain", words, (), **shown)
        reporter.notice(f"to judge the records again: {again}")
        return explanation
