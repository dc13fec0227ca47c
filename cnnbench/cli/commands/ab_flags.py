"""Flags of `cnnbench ab`, which `gate` has, too. Other commands that measure A and B have some."""

from __future__ import annotations

from dataclasses import dataclass

from cnnbench.campaigns.ab.experiment import MOST_PAIRS
from cnnbench.campaigns.ab.lengths import LENGTHS, LONGEST, SHORTEST
from cnnbench.cli.commands.campaign_flags import CampaignFlags
from cnnbench.cli.commands.judging import JudgingFlags
from cnnbench.cli.commands.launch import JobLayoutFlags
from cnnbench.cli.commands.sides import SideFlags
from cnnbench.flags import flag, specs_of


@dataclass(frozen=True, kw_only=True)
class AbFlags(JobLayoutFlags, SideFlags, CampaignFlags, JudgingFlags):
    """Flags of `cnnbench ab`."""

    pairs: int = flag(
        16,
        "Maximum number of pairs. The first analysis is after 8 pairs. With fewer pairs, there is "
        "one analysis, which needs 6 pairs for a verdict, or 7 if other programs disturbed them. "
        "With --resume, if not given: the number that probably gives a verdict. The error rate "
        "stays below alpha, however often you resume.",
        minimum=1,
        maximum=MOST_PAIRS,
    )
    sequential: bool = flag(
        True,
        "Stop at an interim analysis with a clear result, or if the remaining pairs would "
        "probably give no verdict. If false, all pairs are run.",
    )
    burn_in: int = flag(
        1,
        "Number of burn-in processes of A and of B before the first pair. Their results are not "
        "used.",
        minimum=0,
        maximum=100,
    )
    seconds: float | None = flag(
        None,
        "Seconds of timed steps in each process. The number of steps is chosen after the "
        f"burn-in. If not given: {SHORTEST:g} to {LONGEST:g}, chosen from the noise, again after "
        "each interim analysis. With 0, or if A or B has one of the following flags, the flags of "
        "A and B determine the number of steps: "
        f"{', '.join(f'--{name}' for name in sorted(LENGTHS))}.",
        minimum=0,
        maximum=86400,
    )
    cool_down: float = flag(0.0, "Seconds between processes.", minimum=0, maximum=86400)
    pairing: str = flag(
        "auto",
        "How the two processes of a pair share the time. turns: both processes are started, and "
        "one runs steps for 0.3 s while the other waits. alternate: one process runs after the "
        "other. auto: turns if possible.",
        choices=("alternate", "turns", "auto"),
    )
    explain: str = flag(
        "auto",
        "Profile a few more processes of A and of B, and name the layers and causes of the "
        "difference. auto (or no value): only after the verdicts slower and faster.",
        choices=("auto", "always", "never"),
        alone="auto",
    )


SECTIONS = {
    "a": "What A and B are",
    "pairs": "How it is measured",
    "timeout": "Processes and records",
    "threshold": "How it is judged and printed",
    "explain": "How it is judged and printed",
}
"""Titles of the sections of --help, by the flags with which they begin."""

SPECS = specs_of(AbFlags)

OF_ONE_EXPERIMENT = ("results", "seed", "format", "output")
"""Flags that a command that repeats an experiment leaves out."""
