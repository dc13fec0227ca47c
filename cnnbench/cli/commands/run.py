"""``cnnbench run``: measure training, evaluation or inference (may be left out)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cnnbench.errors import ExitCode
from cnnbench.flags import (
    ParsedArgs,
    expand_flag_files,
    parse_args,
    parse_flag_texts,
    specs_of,
    split_command_line,
)
from cnnbench.flags.groups.repeat import RepeatFlags

if TYPE_CHECKING:
    from cnnbench.cli.running import RunProcess

_REPEAT = {spec.name: spec for spec in specs_of(RepeatFlags)}


def main(argv: Sequence[str]) -> int:
    """Runs the benchmark that the flags describe. Raises an exception if the run fails."""
    words = expand_flag_files(argv)
    # A line without flags of `RepeatFlags` is not parsed twice.
    if any(w.startswith("-") and w.lstrip("-").partition("=")[0] in _REPEAT for w in words):
        return _repeat(words)

    @functools.cache
    def process() -> RunProcess:
        # This import is late, because misspelled flags should be refused without waiting for it.
        from cnnbench.cli.running import RunProcess

        return RunProcess(argv)

    args = parse_args(
        words,
        of_run=True,
        before_plugins=lambda given: process().prepare_plugins(ParsedArgs(given)),
    )
    return process().run(args)


def _repeat(words: Sequence[str]) -> int:
    """Runs the benchmark in several processes, for a command line with flags of `RepeatFlags`."""
    from cnnbench.campaigns.repeat import measure_repeatedly
    from cnnbench.cli.commands.campaign_flags import results_folder

    given, others = split_command_line(words, _REPEAT)
    texts = {name: texts_of_flag[-1] for name, texts_of_flag in given.items()}
    options = RepeatFlags(**parse_flag_texts(texts, _REPEAT))
    measure_repeatedly(options, others, results_folder(options.results, "run"))
    return ExitCode.OK
