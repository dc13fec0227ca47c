"""The order of flags, metrics, files and folders changes no verdict and no exit code."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from step_profiles import CONV, Profiles, changed

from cnnbench.cli import main
from cnnbench.records.run import Measured, RunRecord

pytestmark = pytest.mark.slow

ORDERS = 2
"""Orders in which each case is judged."""

METRICS = ("throughput", "memory", "startup", "cpu_time", "step_p99_seconds", "energy_joules")


def written(
    folder: Path,
    texts: Sequence[str],
    draw: random.Random,
    places: Sequence[str] = ("", "a", "z/b"),
) -> Path:
    """A folder with files in random order by name, each in one of some folders below it."""
    folder.mkdir()
    names = [f"{number:04}.json" for number in draw.sample(range(1000), len(texts))]
    for name, text in zip(names, texts, strict=True):
        place = folder / draw.choice(places)
        place.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    return folder


def shuffled(draw: random.Random, words: Sequence[str]) -> list[str]:
    return draw.sample([*words], len(words))


def among(draw: random.Random, words: Sequence[str], flags: Sequence[str]) -> list[str]:
    """Words in their order, with flags in any order between them."""
    found = [*words]
    for flag in shuffled(draw, flags):
        found.insert(draw.randint(0, len(found)), flag)
    return found


def run(
    draw: random.Random, make: Any, speed: float, start: int, batch: int, **parts: Any
) -> RunRecord:
    """A run whose steps scatter; an energy is sometimes measured."""
    seconds = tuple(batch / speed * (1 + 0.02 * draw.random()) for _ in range(12))
    record: RunRecord = make(
        speed,
        flags={"batch_size": batch},
        step_seconds=seconds,
        step_cpu_seconds=tuple(1.5 * one for one in seconds),
        losses=(1.0,) * len(seconds),
        measured=Measured(peak_memory_bytes=int(5e8 * (1 + draw.gauss(0, 0.01)))),
        **parts,
    )
    return dataclasses.replace(
        record, started_at=f"2026-11-20T{start // 60:02}:{start % 60:02}:00Z"
    )


def sides(draw: random.Random, make: Any) -> list[list[str]]:
    """Records of BASE and NEW: slower, faster, noisy, failed, of other work, or on one side."""
    found: tuple[list[RunRecord], list[RunRecord]] = ([], [])
    for batch in draw.sample([4, 8, 16, 32], draw.choice([1, 2, 3])):
        factor, scatter = draw.choice([1, 1, 0.9, 0.97, 1.1]), draw.choice([0.003, 0.03, 0.1])
        facts, lacks = (
            draw.choice([{}, {}, {"usable_cpus": 4}]),
            bool(found[1]) and draw.random() < 0.15,
        )
        for start, side in enumerate(found * draw.choice([3, 4, 6])):
            is_new = side is found[1]
            if is_new and lacks:
                continue
            speed = 100 * (factor if is_new else 1.0) * math.exp(draw.gauss(0, scatter))
            failure = {"error": ("E", "no good")} if is_new and draw.random() < 0.03 else {}
            environment = facts if is_new else {}
            side.append(run(draw, make, speed, start, batch, environment=environment, **failure))
    return [[record.to_json() for record in side] for side in found]


@pytest.fixture
def judged(tmp_path) -> Callable[..., tuple[int, Any]]:
    """judged(WORD...): the exit code and the document of a command, without names of folders."""

    def judge(*words: str | Path) -> tuple[int, Any]:
        output = tmp_path / "document.json"
        output.unlink(missing_ok=True)
        code = main([*map(str, words), "--format=json", f"--output={output}"])
        document = json.loads(output.read_text())
        for name in ("base", "new", "base_label", "new_label", "next_step"):
            document.pop(name, None)
        return int(code), rounded(document)

    return judge


def rounded(value: Any) -> Any:
    """A document whose numbers have ten digits: sums in another order differ in the last ones."""
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return float(f"{value:.10g}") if isinstance(value, float) else value


@pytest.mark.parametrize("case", range(6))
def test_compare(judged, lenet_runs, tmp_path, case: int) -> None:
    draw = random.Random(case)
    texts = sides(draw, lenet_runs({"hostname": "box", "usable_cpus": 8}))
    metrics = draw.sample(METRICS, draw.choice([0, 2, 3, 4]))
    flags = draw.sample(["--threshold=2", "--alpha=0.05", "--allow_changed_work"], 2)
    facts = draw.choice([[], ["usable_cpus", "cpu_model"]])
    found = []
    for order in range(ORDERS):
        places = [
            written(tmp_path / f"{order}{side}", shuffled(draw, one), draw)
            for side, one in zip("ab", texts, strict=True)
        ]
        named = [f"--metrics={','.join(shuffled(draw, metrics))}"] if metrics else []
        allowed = [f"--allow_different={','.join(shuffled(draw, facts))}"] if facts else []
        words = among(draw, [*map(str, places)], [*flags, *named, *allowed])
        found.append(judged("compare", *words))
    assert all(other == found[0] for other in found)


@pytest.mark.parametrize("case", range(6))
def test_history(judged, lenet_runs, tmp_path, case: int) -> None:
    draw = random.Random(case)
    make = lenet_runs({"hostname": "box", "usable_cpus": 8})
    commits, factor = draw.choice([8, 14]), draw.choice([1, 0.9, 0.96, 1.1])
    first, undone = draw.randint(3, commits - 3), draw.choice([commits, commits - 2])
    slope = draw.choice([1, 1, 0.99])
    texts = [
        run(
            *(draw, make, speed * slope**commit * math.exp(draw.gauss(0, 0.004)), 10 * commit),
            batch,
            environment={"git_commit": f"{commit:02}" * 20},
        ).to_json()
        for batch in draw.sample([4, 8], draw.choice([1, 1, 2]))
        for commit in range(commits)
        for speed in [100 * (factor if first <= commit < undone else 1)] * draw.choice([1, 2])
    ]
    flags = ["--fail_on=step", "--threshold=2", draw.choice(["--last=3", "--machine=CPU"])]
    found = []
    for order in range(ORDERS):
        folder = written(tmp_path / f"{order}", shuffled(draw, texts), draw)
        found.append(judged("history", *among(draw, [str(folder)], flags)))
    assert all(other == found[0] for other in found)


@pytest.mark.parametrize("case", range(3))
def test_explain(judged, lenet_runs, tmp_path, case: int) -> None:
    draw = random.Random(case)
    profiles = Profiles(lenet_runs({"hostname": "box", "usable_cpus": 8}), case, 0.02, 0.01)
    slower = changed(lambda part: part.kind == CONV, draw.choice([1.0, 1.1, 1.5]), flops=2 * 10**9)
    texts = [
        [profile.to_json() for profile in profiles.side(change, 3)] for change in (None, slower)
    ]
    found = []
    for order in range(ORDERS):
        places = [
            written(tmp_path / f"{order}{side}", shuffled(draw, one), draw, [""])
            for side, one in zip("ab", texts, strict=True)
        ]
        found.append(judged("explain", *among(draw, [*map(str, places)], ["--rows=5"])))
    assert all(other == found[0] for other in found)
