"""Flags of commands that store a campaign in a results folder, and how they open it."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from cnnbench.base.terminal import ChildProcessReporter
from cnnbench.campaigns.processes import (
    Campaign,
    CampaignIdentity,
    CampaignKind,
    ConfigurationIdentity,
    ResultsFolder,
    Settings,
)
from cnnbench.errors import FlagError
from cnnbench.flags import flag
from cnnbench.machine import facts


def results_folder(folder: str | None, command: str, resume: bool = False) -> str:
    """The path in --results. By default, the name consists of the command and the local time.

    Raises FlagError if --resume is given without --results.
    """
    if resume and folder is None:
        raise FlagError(
            "resume", "true", "needs --results=DIR: the folder of the interrupted campaign"
        )
    return folder or f"{command}-{datetime.now():%Y%m%d-%H%M%S}"


@dataclass(frozen=True, kw_only=True)
class CampaignFlags:
    """Flags of commands that run many processes and store the records in a results folder."""

    timeout: float = flag(1800.0, "Time limit of each process, in seconds.", above=0)
    seed: int | None = flag(
        None,
        "Seed of the random order. If not given, a random seed; with --resume, the seed in "
        "--results.",
        minimum=0,
    )
    results: str | None = flag(
        None,
        "Folder for records, logs and the journal. If not given, COMMAND-DATE-TIME.",
        path="folder",
    )
    resume: bool = flag(
        False,
        "Continue the campaign in --results: measured processes are kept, and failed processes "
        "run again. Limits such as --pairs or --rounds may be larger than before.",
    )

    def resolve_seed(self, kind: CampaignKind, folder: str, suite: str | None = None) -> int:
        """The value of --seed. By default, a random seed, or the seed in `folder` with --resume."""
        seed = self.seed
        if seed is None and self.resume:
            seed = kind.stored_seed(folder, suite)
        return random.SystemRandom().randrange(2**31) if seed is None else seed

    @contextlib.contextmanager
    def open_campaign(
        self,
        kind: CampaignKind,
        plans: Mapping[str, ConfigurationIdentity],
        policy: Mapping[str, Any] | None = None,
        reporter: ChildProcessReporter | None = None,
        machine: Mapping[str, Any] | None = None,
        *,
        settings: Settings | None = None,
        seed: int | None = None,
        cool_down: float = 0.0,
    ) -> Iterator[tuple[ResultsFolder, Campaign, int]]:
        """Context manager: opens the folder in --results. Yields the folder, the campaign that runs
        its processes, and the seed of the random order.

        With --resume, everything must be as before: see `CampaignIdentity` for `plans` and
        `policy`, to which the seed is added. `machine` contains the facts of this machine if they
        are known already. `settings` are stored, too, if the command has settings of its own.
        `seed` replaces `resolve_seed` if the command has called it already.
        """
        name = results_folder(self.results, kind.command, self.resume)
        if seed is None:
            seed = self.resolve_seed(kind, name, (policy or {}).get("suite"))
        identity = CampaignIdentity(
            plans=plans,
            facts=facts.collect() if machine is None else machine,
            policy={**(policy or {}), "seed": seed},
        )
        stored = settings and replace(settings, identity=identity.values())
        with ResultsFolder(kind, name, stored or identity, resume=self.resume) as folder:
            reporter = reporter or ChildProcessReporter(sys.stderr)
            yield folder, Campaign(reporter, cool_down=cool_down, identity=identity), seed
