"""Profiles processes of A and B, and explains why a step of B takes more or less time than a step
of A.

The processes run one after the other, in the order A B, B A, A B, so that a machine that becomes
slower affects A and B equally. If both A and B use oneDNN, short processes log which kernels of
oneDNN a step calls.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from cnnbench.base.files import read_json
from cnnbench.campaigns.ab.asking import supports
from cnnbench.campaigns.ab.experiment import AB, EXPLANATION, SIDES
from cnnbench.campaigns.ab.side import AbSide, make_process_request
from cnnbench.campaigns.processes import (
    Campaign,
    ProcessRequests,
    ProcessResult,
    ResultsFolder,
    run_process,
)
from cnnbench.errors import BenchmarkError
from cnnbench.judge.explain import explain
from cnnbench.records.codec import encode
from cnnbench.records.explanation import Explanation
from cnnbench.records.profiles import Primitive, StepProfile
from cnnbench.run.observe import onednn

ROUNDS, STEPS = 3, 20
"""Number of processes of A and of B, and number of profiled steps in each process."""

SUFFIX = ".profile"

_WARM_UP = 5
_OF_ONEDNN = "Mkl"  # TensorFlow operations that call oneDNN have "Mkl" in their names.


class NotExplainedError(BenchmarkError):
    """A or B cannot be profiled, so the difference cannot be explained. The message is the reason,
    in one line.
    """


def explain_or_notice(
    results: ResultsFolder,
    make_explanation: Callable[[], Explanation],
    print_notice: Callable[[str], None],
) -> Explanation | None:
    """Explains a verdict: reads the explanation that an earlier session has written to the journal
    of an experiment or, if there is none, calls `make_explanation` and writes it there.

    Returns None, and prints why, if an explanation is impossible.
    """
    try:
        for note in results.earlier_journal_notes(EXPLANATION):
            with contextlib.suppress(LookupError, ValueError):
                return Explanation.from_dict(note["document"])
        explanation = make_explanation()
        results.add_journal_note(EXPLANATION, document=encode(explanation))
        return explanation
    except NotExplainedError as error:
        print_notice(f"not explained: {error}")
    except KeyboardInterrupt:
        print_notice("not explained, because it was interrupted; the verdict does not change")
    return None


PROFILES_OF_SIDES = replace(AB, command="explain", noun="")
"""Kind of campaign for profiles. ``a/`` and ``b/`` contain profiles, ``discarded/`` records."""


@dataclass(frozen=True, kw_only=True)
class AbProfiler:
    """Profiles A and B in `rounds` processes each. Every process runs `steps` steps with the
    profiler, and as many timed steps without the profiler.
    """

    sides: Mapping[str, AbSide]
    results: ResultsFolder
    campaign: Campaign
    rounds: int = ROUNDS
    steps: int = STEPS
    timeout: float = 1800.0

    def explain(self, *, store: bool = False) -> Explanation:
        """Profiles A and B, and explains why their steps take different times. If `store`, writes
        the explanation to the results folder, for `report`.

        Raises NotExplainedError if A or B cannot be profiled or a process failed.
        """
        for name, side in self.sides.items():
            config = side.resolved.config
            if config.get("eval") or config.get("input_only"):
                reason = f"side {name.upper()} has no steps to profile (--eval, --input_only)"
                raise NotExplainedError(reason)
            if not supports(side, "profile_json"):
                reason = f"the cnnbench of side {name.upper()} is of a version without"
                raise NotExplainedError(f"{reason} --profile_json")
        self.results.add_session_start()
        explanation = self.campaign.run_requests(self._requests())
        if store:
            path = self.results.folder / "explanation.json"
            self.results.write(path, explanation.to_json().encode("ascii"))
        return explanation

    def _requests(self) -> ProcessRequests[Explanation]:
        profiles: dict[str, list[StepProfile]] = {side: [] for side in SIDES}
        for number in range(1, self.rounds + 1):
            for name in SIDES if number % 2 == 1 else SIDES[::-1]:
                later_processes = len(SIDES) * self.rounds - sum(map(len, profiles.values())) - 1
                profiles[name].append(
                    (yield from self._profile_process(name, number, later_processes))
                )
        if all(_can_log_kernels(self.sides[name], profiles[name][0]) for name in SIDES):
            for name in SIDES:
                logged = yield from self._log_kernels(name)
                profile = replace(profiles[name][0], primitives=logged)
                self.results.write(self._profile_path(name, 1), profile.to_json().encode("ascii"))
                profiles[name][0] = profile
        labels = [f"{name.upper()}: {side.description()}" for name, side in self.sides.items()]
        return explain(profiles["a"], profiles["b"], (labels[0], labels[1]))

    def _profile_process(
        self, name: str, number: int, later_processes: int
    ) -> ProcessRequests[StepProfile]:
        """Runs a process of A or B (`name`) with the profiler, and returns its profile.

        Raises NotExplainedError if the process failed or wrote no profile. `later_processes` is
        the number of profiled processes that follow.
        """
        label, path = f"profile {number} {name.upper()}", self._profile_path(name, number)
        side = self.sides[name]
        self.results.remove(path)
        flags: dict[str, object] = {
            "profile_json": self.results.unfinished_path(path),
            "profile_steps": self.steps,
            "warmup": "fixed",
            "num_warmup_batches": _WARM_UP + self.steps,
        }
        if "num_epochs" not in side.given_flags:
            flags["num_batches"] = self.steps
        ended = yield from self._run_process(
            label, side.with_added_flags(flags), path.stem, None, later_processes, path
        )
        message = ended.message
        if not message:
            message = "no profile"
            with contextlib.suppress(ValueError, RecursionError):
                return StepProfile.from_dict(read_json(path))
        raise NotExplainedError(f"{label}: {message}; see {self.results.log_path(path.stem)}")

    def _log_kernels(self, name: str) -> ProcessRequests[tuple[Primitive, ...] | None]:
        """Runs a process that logs the oneDNN kernels that a step calls. Returns None if the log
        contains no kernels.
        """
        label, stem, side = f"oneDNN {name.upper()}", f"onednn-{name}", self.sides[name]
        side = replace(side, variables={**side.variables, **onednn.VARIABLES})
        later_processes = len(SIDES) - SIDES.index(name) - 1
        ended = yield from self._run_process(
            label, side.with_added_flags(onednn.FLAGS), stem, "oneDNN", later_processes
        )
        primitives: tuple[Primitive, ...] = ()
        if not ended.message:
            with contextlib.suppress(OSError), open(self.results.log_path(stem), "rb") as log:
                primitives = onednn.primitives_of_step(log)
        return primitives or None

    def _run_process(
        self,
        label: str,
        side: AbSide,
        stem: str,
        key: str | None,
        later_processes: int,
        leaves: Path | None = None,
    ) -> ProcessRequests[ProcessResult]:
        more = {"target": self.results.pending_record_path(stem), "answers": (), "leaves": leaves}
        process_request = make_process_request(
            self.results, stem, side, label=label, key=key, **more
        )
        return run_process(self.results, process_request, self.timeout, [key] * later_processes)

    def _profile_path(self, name: str, number: int) -> Path:
        return self.results.folder / name / f"{number:04d}-{name}{SUFFIX}"


def _can_log_kernels(side: AbSide, profile: StepProfile) -> bool:
    """Whether a process of A or B (`side`) can log which oneDNN kernels a step calls."""
    placement = profile.record.placement
    on_cpu = placement is not None and placement.device == "cpu"
    calls = any(_OF_ONEDNN in name for name in profile.graph)
    return on_cpu and calls and "num_epochs" not in side.given_flags
