"""Profiles processes of both sides and attributes their difference.

They run one after the other, in the order A B, B A, A B, so that a machine that becomes slower
affects both sides. Where both use oneDNN, short processes log which of its kernels a step calls.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from cnnbench.base.reading import read_json
from cnnbench.base.text.numbers import count, number
from cnnbench.campaigns.ab.flags import names
from cnnbench.campaigns.ab.results import SIDES, PairsFolder
from cnnbench.campaigns.ab.side import Side, SideFlags, has_module, measuring
from cnnbench.campaigns.processes.campaign import Campaign
from cnnbench.campaigns.processes.child import Ended
from cnnbench.errors import BenchmarkError
from cnnbench.judge.explain import explain
from cnnbench.records.explanation import Explanation
from cnnbench.records.files import write_text
from cnnbench.records.step_profile import Primitive, StepProfile
from cnnbench.run.observe import onednn

ROUNDS, STEPS = 3, 20
"""Processes of each side, and profiled steps of each."""

SUFFIX = ".profile"

_WARM_UP = 5
_OF_ONEDNN = "Mkl"  # in the names of TensorFlow's operations that call it
_PROFILES = "records/step_profile.py"  # in versions that have --profile_json


class NotExplainedError(BenchmarkError):
    """The sides cannot be profiled; the message gives the reason in one line."""


def explained(
    make: Callable[[], Explanation | None], result: str, tell: Callable[[str], None]
) -> Explanation | None:
    """The explanation of a difference; None, with a notice of the reason, if there is none."""
    try:
        return make()
    except NotExplainedError as error:
        tell(f"not explained: {error}")
    except KeyboardInterrupt:
        tell(f"not explained: interrupted; the {result} stands")
    return None


@dataclass(frozen=True, kw_only=True)
class Profiling:
    """Sides to profile in `rounds` processes each, with `steps` profiled and timed steps."""

    a: Side
    b: Side
    resolved: Mapping[str, SideFlags] = field(default_factory=dict)
    rounds: int = ROUNDS
    steps: int = STEPS
    timeout: float = 1800.0
    cool_down: float = 0.0

    def sides(self) -> dict[str, Side]:
        """The sides by name."""
        return dict(zip(SIDES, (self.a, self.b), strict=True))

    def obstacle(self) -> str | None:
        """Why the sides cannot be profiled; None if they can."""
        for name, side in self.sides().items():
            config = self.resolved.get(name, SideFlags()).config
            if config.get("eval") or config.get("input_only"):
                return f"side {name.upper()} has no steps to profile (--eval, --input_only)"
            if not side.is_this_cnnbench and not has_module(side, _PROFILES):
                return f"the cnnbench of side {name.upper()} is of a version without --profile_json"
        return None


def profile(profiling: Profiling, results: PairsFolder, campaign: Campaign) -> Explanation:
    """Explains the difference by profiled processes; NotExplainedError if one failed."""
    if found := profiling.obstacle():
        raise NotExplainedError(found)
    campaign.cool_down = profiling.cool_down
    campaign.expect([None] * len(SIDES) * profiling.rounds)
    profiles: dict[str, list[StepProfile]] = {side: [] for side in SIDES}
    for turn in range(profiling.rounds):
        for side in SIDES if turn % 2 == 0 else SIDES[::-1]:
            profiles[side].append(_profiled(profiling, side, turn + 1, results, campaign))
    if all(_has_primitives(profiling.sides()[name], profiles[name][0]) for name in SIDES):
        campaign.expect(["oneDNN"] * len(SIDES))
        for name in SIDES:
            primitives = _logged(profiling, name, results, campaign)
            profiles[name][0] = replace(profiles[name][0], primitives=primitives)
            write_text("results", str(_path(results, name, 1)), profiles[name][0].to_json())
    labels = [f"{n.upper()}: {side.description()}" for n, side in profiling.sides().items()]
    return explain(profiles["a"], profiles["b"], (labels[0], labels[1]))


def _profiled(
    profiling: Profiling, name: str, turn: int, results: PairsFolder, campaign: Campaign
) -> StepProfile:
    """The profile of one process; NotExplainedError if it failed or left none."""
    label = f"profile {turn} {name.upper()}"
    path = _path(results, name, turn)
    stem = path.stem
    path.unlink(missing_ok=True)
    campaign.begin(label)
    side = profiling.sides()[name]
    side = replace(side, flags=(*side.flags, *_flags(profiling, side, path.absolute())))
    ended = _run(profiling, name, side, stem, results, campaign)
    told, found = ended.message, None
    if not told:
        with contextlib.suppress(ValueError, RecursionError):
            found = StepProfile.from_dict(read_json(path))
        told = "no profile"
        if found is not None:
            told = f"{number(1e3 * min(found.record.step_seconds))} ms in its fastest step"
    campaign.end(label, told, ended.seconds)
    if found is None:
        raise NotExplainedError(f"{label}: {told}; see {results.log(stem)}")
    return found


def _has_primitives(side: Side, profile: StepProfile) -> bool:
    """Whether a short process can log which kernels of oneDNN a step calls."""
    placement = profile.record.placement
    on_cpu = placement is not None and placement.device == "cpu"
    calls = any(_OF_ONEDNN in name for name in profile.graph)
    return on_cpu and calls and "num_epochs" not in names(side)


def _logged(
    profiling: Profiling, name: str, results: PairsFolder, campaign: Campaign
) -> tuple[Primitive, ...] | None:
    """The calls of oneDNN in a step, according to the log of a process; None if it has none."""
    label, stem = f"oneDNN {name.upper()}", f"onednn-{name}"
    campaign.begin(label)
    side = profiling.sides()[name]
    side = replace(
        side,
        flags=(*side.flags, *onednn.FLAGS),
        variables={**side.variables, **onednn.VARIABLES},
    )
    ended = _run(profiling, name, side, stem, results, campaign)
    found: tuple[Primitive, ...] = ()
    if not ended.message:
        with contextlib.suppress(OSError), open(results.log(stem), "rb") as log:
            found = onednn.primitives_of_step(log)
    calls = sum(one.calls for one in found)
    told = ended.message or f"{count(calls, 'call', 'calls')} in a step"
    campaign.end(label, told, ended.seconds)
    return found or None


def _run(
    profiling: Profiling,
    name: str,
    side: Side,
    stem: str,
    results: PairsFolder,
    campaign: Campaign,
) -> Ended:
    command = measuring(
        side,
        results.pending(stem),
        results.log(stem),
        facts=campaign.facts,
        like=profiling.resolved.get(name),
    )
    (ended,) = campaign.run([command], profiling.timeout)
    return ended


def _path(results: PairsFolder, name: str, turn: int) -> Path:
    return results.folder / name / f"{turn:04d}-{name}{SUFFIX}"


def _flags(profiling: Profiling, side: Side, path: Path) -> list[str]:
    steps = profiling.steps
    found = [
        f"--profile_json={path}",
        f"--profile_steps={steps}",
        "--warmup=fixed",
        f"--num_warmup_batches={_WARM_UP + steps}",
    ]
    return found if "num_epochs" in names(side) else [*found, f"--num_batches={steps}"]
