"""The candidates and the results of a search as text, and its best flags as a flag file."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from cnnbench.base.document import Paragraph, Section
from cnnbench.base.document.console import sections_to_text
from cnnbench.base.stats import group_by
from cnnbench.base.text import count_text
from cnnbench.campaigns.tune import phrases
from cnnbench.campaigns.tune.space import Candidate, SearchSpace, Settings, candidates_of_group
from cnnbench.judge.report.sections.tune import answer_sentence, search_sections
from cnnbench.records.campaigns import TuneDocument


def table_text(tuning: TuneDocument) -> str:
    """The results of a search as text: best command line, proof, and a table of candidates."""
    return sections_to_text(search_sections(tuning))


def candidates_text(
    space: SearchSpace, as_given: Candidate, groups: Mapping[str, Sequence[Settings]]
) -> str:
    """Text for --list: the candidates of each group, and dropped candidates by reason.

    `as_given` is the candidate with the given flags.
    """
    sections = []
    for name, choices in groups.items():
        candidates, dropped = candidates_of_group(space, choices, as_given)
        texts = []
        for candidate in candidates:
            changes = f" ({', '.join(candidate.changes)})" if candidate.changes else ""
            texts.append(Paragraph(f"{candidate.name}{changes}", indent=2, whole=True))
        for reason, group in group_by(dropped, lambda candidate: candidate.reason).items():
            names = "; ".join(candidate.name for candidate in group)
            text = phrases.DROPPED.format(reason=reason, names=names)
            texts.append(Paragraph(text, indent=2, hanging=4))
        count = count_text(candidates, "candidate", "candidates")
        sections.append(Section(title=f"{name}: {count}", blocks=tuple(texts)))
    return sections_to_text(sections)


def flag_file_text(tuning: TuneDocument) -> str:
    """The flags of a search's best command line, in the format of ``--flagfile``.

    A flag file cannot set environment variables, so they are in comments.
    """
    flags = [word for word in tuning.command if word.startswith("--")]
    variables = [
        f"# Set this environment variable, too: {variable}"
        for variable in command_variables(tuning)
    ]
    return "\n".join([f"# cnnbench tune: {answer_sentence(tuning)}", *variables, *flags]) + "\n"


def command_variables(tuning: TuneDocument) -> tuple[str, ...]:
    """The environment variables of a search's best command line, such as "LD_PRELOAD=lib.so"."""
    return tuple(map(shlex.quote, tuning.command[1 : tuning.command.index("cnnbench")]))
