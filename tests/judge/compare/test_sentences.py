"""The wording of verdicts, answers, advice and notes: constructed comparisons against one file.

Tests cnnbench/judge/compare/compare.py, cnnbench/judge/compare/comparability.py,
cnnbench/judge/compare/disturbance.py, cnnbench/judge/compare/estimate.py,
cnnbench/judge/compare/judgement.py, cnnbench/judge/compare/verdicts.py,
cnnbench/judge/compare/notes.py, cnnbench/judge/compare/answers.py,
cnnbench/judge/compare/phrases.py and cnnbench/judge/compare/result.py. Other tests of this folder
test values; the formats of a comparison have a transcript each in
tests/judge/report/renderers/golden. UPDATE_GOLDEN=1 writes the file anew.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
from golden import golden
from sides import CALM, WALL_NOISE, conditions, disturbed, every, network, paused

from cnnbench.base.inference import AnalysisSchedule, interim_analyses
from cnnbench.judge.compare import (
    METRICS,
    Case,
    Criteria,
    Policy,
    Samples,
    SkippedFile,
    compare_records,
    judge,
    judge_all,
)
from cnnbench.judge.compare.notes import imported_note
from cnnbench.judge.compare.result import without_tests
from cnnbench.judge.compare.verdicts import SameCode
from cnnbench.judge.metrics.rules import Acceptance, ConfigurationRule, MetricRule, Rules
from cnnbench.records.all_reduce import Copying
from cnnbench.records.subject import Subject

GOLDEN = Path(__file__).parent / "golden"
BASE = (100.0, 100.2, 99.8, 100.1, 99.9)
SIX = (*BASE, 100.0)
NOISY = (90.0, 95.0, 100.0, 105.0, 110.0)
PAIRS = [100.0] * 8


def times(factor, values=BASE):
    return [value * factor for value in values]


def changed(*per_cent):
    return [100.0 * (1 + one / 100) for one in per_cent]


MADE = interim_analyses(8, 0.04)
DOWN, UP = (-1, -1, -2, -2, -3, -3, -4, -4), (1, 1, 2, 2, 3, 3, 4, 4)
EVEN = [100 * math.exp(sign * 0.04) for sign in (1, -1) * 4]
MEDIANS = [80.0, 90.0, 95.0, 100.0, 110.0, 120.0, 130.0]
JUDGED = {
    "three values": (BASE, BASE[:3], {}),
    "no value in BASE": ((), BASE, {}),
    "no value in NEW": (BASE, (), {}),
    "one value that cannot be used": (BASE, [math.nan], {}),
    "values that cannot be used": ([*BASE, 0.0, -5.0], BASE, {}),
    "noise": ([90, 95, 100, 105, 110], [89, 96, 99, 106, 111], {}),
    "certain, perhaps below the threshold": ([98, 99, 100, 101, 102], [87, 90, 93, 96, 97.5], {}),
    "memory of too few": ([1e9] * 4, [2e9] * 4, {"metric": METRICS["memory"]}),
    "accuracy": (
        [0.750, 0.751, 0.752, 0.751, 0.750],
        [0.740, 0.741, 0.742, 0.741, 0.740],
        {"metric": METRICS["accuracy"]},
    ),
    "start-up": ([10.0] * 8, [7.0] * 8, {"metric": METRICS["startup"]}),
    "CPU time": ([1.0] * 8, [1.1] * 8, {"metric": METRICS["cpu_time"]}),
    "few pairs": (BASE, times(0.9), {"paired": True}),
    "values that make no pairs": (BASE, SIX, {"paired": True}),
    "pairs that are not faster": (
        PAIRS,
        changed(*DOWN),
        {"paired": True, "policy": Policy(questions=("faster",))},
    ),
    "neither question is answered": (
        PAIRS,
        changed(*UP),
        {"paired": True, "policy": Policy(questions=("slower", "faster"))},
    ),
    "pairs that may be slower": (PAIRS, changed(*DOWN), {"paired": True}),
    "up to 200 more pairs are advised": (
        PAIRS,
        changed(*(1.02 * one for one in DOWN)),
        {"paired": True},
    ),
    "pairs that may be both": (PAIRS, changed(-8, -5, -2, -1, 1, 2, 5, 8), {"paired": True}),
    "more pairs": (
        PAIRS,
        EVEN,
        {"paired": True, "looks": MADE, "plan": AnalysisSchedule(0.04, 8, MADE)},
    ),
    "a new experiment": (PAIRS, EVEN, {"paired": True, "plan": AnalysisSchedule(0.04)}),
    "a new experiment of more": (
        PAIRS[:4],
        changed(-9, -10, -11, -12),
        {"paired": True, "plan": AnalysisSchedule(0.04)},
    ),
    "medians that say the opposite": (
        MEDIANS,
        [78.4, 88.2, 93.1, 103.0, 107.8, 117.6, 127.4],
        {"paired": True},
    ),
}
FAMILIES = {
    "too few for ten configurations": (BASE, times(0.9)),
    "enough for ten configurations": (SIX, times(0.9, SIX)),
    "beyond the threshold, but not certain": (
        [100.0, 101.0, 102.0, 103.0, 104.0, 105.0, 106.0],
        [80.0, 81.0, 82.0, 83.0, 84.0, 102.5, 85.0],
    ),
    "a few more of ten configurations": (
        [100 * math.exp(0.2 * sign) for sign in (1, -1) * 4],
        [100 * math.exp(0.2 * sign - 0.3) for sign in (1, -1) * 4],
    ),
}


def written(sections):
    return "\n".join(
        f"{title}\n  " + "\n  ".join(lines) + "\n" for title, lines in sections.items()
    )


def reasons():
    """Verdicts on plain values, and the reasons for them."""
    found = {}
    for title, (base, new, more) in JUDGED.items():
        policy = more.get("policy", Policy())
        own = {name: value for name, value in more.items() if name != "policy"}
        found[title] = judge(Samples(base, new, **own), policy)
    like = [Case(Samples(BASE, BASE)) for _ in range(9)]
    for title, (base, new) in FAMILIES.items():
        found[title] = judge_all([*like, Case(Samples(base, new))])[-1]
    return {
        f"values: {title}": [f"{one.verdict.value}: {one.reason}"] for title, one in found.items()
    }


class Sides:
    """Makes the two sides of a comparison, of runs or of reductions."""

    def __init__(self, runs, reductions):
        self.runs, self.reductions = runs, reductions

    def speeds(self, base=BASE, new=BASE, **more):
        """Runs of these speeds; `more` is of NEW alone."""
        return self.runs.of(*base), self.runs.of(*new, **more)

    def both(self, base, new, **more):
        return self.runs.of(*base, **more), self.runs.of(*new, **more)

    def failed(self, message="out of\nmemory"):
        return self.runs(None, error=("ResourceExhaustedError", message))

    def with_facts(self, **facts):
        return self.speeds(environment=facts)

    def paused(self, pause):
        return paused(self.runs, "a"), paused(self.runs, "b", pause)

    def disturbed(self, wall, cpu, noise=WALL_NOISE):
        return disturbed(self.runs, wall, cpu, noise)

    def pairs(self, a, b):
        """Runs of the pairs of one experiment, by their numbers."""
        return [
            [self.runs(100.0 - pair, ab={"side": side, "seed": 1, "pair": pair}) for pair in pairs]
            for side, pairs in (("a", a), ("b", b))
        ]

    def killed(self):
        lost = [{"side": "b", "how": "killed by SIGKILL"}]
        a, b = self.pairs(range(1, 9), range(1, 9))
        for one in (0, 3):
            place = {**b[one].ab, "lost": lost if one else [*lost, {"side": "a", "how": "stopped"}]}
            b[one] = dataclasses.replace(b[one], ab=place)
        return a, b

    def commits(self, factor):
        """Runs of two commits."""
        subjects = [Subject(repository="nets", revision=one * 40) for one in "ab"]
        speeds = (BASE, times(factor))
        return [
            self.runs.of(*side, subject=subject)
            for side, subject in zip(speeds, subjects, strict=True)
        ]

    def reduced(self, factor, **point):
        return [
            self.reductions(
                value / 16,
                self.reductions.point(value * factor / 16, spec="copy", **point),
                copies=(Copying(bytes=8_000_000, devices=4, seconds=(0.03 / value,)),),
            )
            for value in BASE
        ]


IRREGULAR = {2, 3, 9, 14, 33, 61, 62, 78, 90, 97, 118, 119, 125, 141, 150, 163, 171, 188, 190, 197}
STOP = {"status": "interrupted"}
CPU = {"cpu_model": "Slow CPU", "logical_cpus": 64}
RULES = Rules(
    source="cnnbench.toml",
    digest="0123456789ab",
    rules=(
        ConfigurationRule(
            configurations=("lenet*",),
            threshold=5.0,
            fail_on=(),
            judge=("memory",),
            metrics=(
                MetricRule(name="memory", threshold=1.0, share=1.0, fail_on=("slower",)),
                MetricRule(name="startup", threshold=2.0),
                MetricRule(name="accuracy"),
            ),
        ),
        ConfigurationRule(configurations=("vgg*",)),
    ),
)


def accepting(until):
    commit = Acceptance(commit="b" * 12, reason="wider", until=until)
    return Rules(source="cnnbench.toml", digest="0123456789ab", accept=(commit,))


def compared(sides, *, skipped=(), **criteria):
    return compare_records(*sides, Criteria(**criteria), skipped=skipped)


def gpu_step_times(runs, seconds):
    one = runs(step_seconds=seconds, losses=())
    return dataclasses.replace(one, placement=dataclasses.replace(one.placement, device="gpu"))


COMPARED = {
    "slower": lambda s: compared(s.speeds(new=times(0.9))),
    "faster": lambda s: compared(s.speeds(new=times(1.1))),
    "same": lambda s: compared(s.speeds()),
    "not slower": lambda s: compared(s.speeds(PAIRS, changed(*range(-1, 7))), paired=True),
    "a long run a side": lambda s: compared(([s.runs(steps=1000)], [s.runs(steps=1000)])),
    "nothing": lambda s: compared(((), ())),
    "missing in NEW": lambda s: compared(s.speeds(new=())),
    "missing in BASE": lambda s: compared(s.speeds(base=())),
    "failed in NEW": lambda s: compared((s.runs.of(*BASE), [*s.runs.of(*BASE), s.failed()])),
    "failed in both": lambda s: compared(([s.failed()], [s.failed("no disk")])),
    "not measured": lambda s: compared(
        (s.runs.of(*BASE), [*s.runs.of(*BASE), s.runs(step_seconds=(), losses=())])
    ),
    "interrupted": lambda s: compared((s.runs.of(*BASE), s.runs.of(*BASE, **STOP))),
    "the same runs": lambda s: compared((both := s.runs.of(*BASE), both)),
    "a differing fact": lambda s: compared(s.with_facts(tensorflow_version="2.20.0")),
    "differing facts": lambda s: compared(s.with_facts(gpu_names=["b"], gpu_driver="2", **CPU)),
    "an unknown fact": lambda s: compared(s.with_facts(cpu_turbo=True, cgroup_cpu_limit=1.5)),
    "a fact that may differ": lambda s: compared(
        s.with_facts(cpu_model="x"), allow_different=["cpu_*"]
    ),
    "two machines in NEW": lambda s: compared(
        (s.runs.of(*BASE), [*s.runs.of(*BASE), s.runs(environment=CPU)])
    ),
    "two machines in both": lambda s: compared(
        [[*s.runs.of(*BASE), s.runs(environment=CPU)] for _ in range(2)]
    ),
    "two commits in NEW": lambda s: compared(
        (
            s.runs.of(*BASE),
            [s.runs(subject=Subject(repository="nets", revision=one * 40)) for one in "abab"],
        )
    ),
    "another network": lambda s: compared(
        s.speeds(new=times(4.32), model=network(3_687_000, parameters=242_603))
    ),
    "a few parameters more": lambda s: compared(s.speeds(model=network(60, parameters=11))),
    "hardly more FLOPs": lambda s: compared(
        (s.runs.of(*BASE, model=network(6_000_000)), s.runs.of(*BASE, model=network(6_000_001)))
    ),
    "no FLOPs before": lambda s: compared((s.runs.of(*BASE, model=network(0)), s.runs.of(*BASE))),
    "twice the FLOPs of forward passes": lambda s: compared(
        (
            s.runs.of(*BASE, flags={"forward_only": True}),
            s.runs.of(*BASE, flags={"forward_only": True}, model=network(120)),
        )
    ),
    "another batch": lambda s: compared(s.speeds(flags={"batch_size": 16})),
    "another network and batch": lambda s: compared(
        s.speeds(model=network(66), flags={"batch_size": 16}, environment=CPU)
    ),
    "memory of another network": lambda s: compared(
        (
            s.runs.with_memory(1000, 1001, 1002, 1003),
            s.runs.with_memory(1000, 1001, 1002, 1003, model=network(66)),
        ),
        metrics=["memory"],
    ),
    "changed work that is allowed": lambda s: compared(
        s.speeds(model=network(66)), allow_changed_work=True
    ),
    "two speeds": lambda s: compared(s.both([200.0, 36.0] * 4, [36.0, 200.0] * 4)),
    "an outlier": lambda s: compared(s.both([200, 204, 200, 36, 200], [200, 36, 200, 204, 200])),
    "noise of one thread": lambda s: compared(
        s.both(
            [200.0, 36.0] * 3,
            [36.0, 200.0] * 3,
            flags={"device": "cpu", "num_intra_threads": 1},
            steps=100,
        )
    ),
    "a few more processes": lambda s: compared(
        s.speeds((97.0, 98.5, 100.0, 101.5, 103.0), times(1.01, (97, 98.5, 100, 101.5, 103)))
    ),
    "a few more pairs": lambda s: compared(s.speeds(PAIRS, EVEN), paired=True),
    "a new experiment": lambda s: compared(
        s.speeds(PAIRS, EVEN), paired=True, plan=AnalysisSchedule(0.04)
    ),
    "more memory": lambda s: compared(
        (s.runs.with_memory(*[1000] * 6), s.runs.with_memory(*[1500] * 6))
    ),
    "a longer start": lambda s: compared(
        (s.runs.with_startup(*[5] * 6), s.runs.with_startup(*[9] * 6)), metrics=["startup"]
    ),
    "an open question of memory": lambda s: compared(
        (
            s.runs.with_memory(1000, 1300, 900, 1200, 1100),
            s.runs.with_memory(1000, 1300, 900, 1200, 1100),
        ),
        metrics=["throughput", "memory"],
    ),
    "CPU time that was not measured": lambda s: compared(
        s.speeds(), metrics=["throughput", "cpu_time"]
    ),
    "losses that are not finite": lambda s: compared(s.speeds(losses=(1.0, math.nan, 1.0))),
    "emulated GPUs": lambda s: compared(s.both(BASE, BASE, environment={"emulated_gpus": True})),
    "alternating step times": lambda s: compared(
        (
            [gpu_step_times(s.runs, (0.1,) * 8) for _ in range(4)],
            [gpu_step_times(s.runs, (0.2, 1e-4) * 4) for _ in range(4)],
        )
    ),
    "skipped files": lambda s: compared(
        s.speeds(),
        skipped=(
            SkippedFile("cut.json", "cut off after 10 characters"),
            SkippedFile("ar.json", "holds another kind", defect=False),
        ),
    ),
    "disturbed runs": lambda s: compared(
        (
            s.runs.of(*NOISY, conditions=conditions("load", others=1.37)),
            [
                *s.runs.of(*NOISY[:4], conditions=conditions(others=0.02)),
                s.runs(NOISY[4], conditions=conditions("load", "steal", others=0.5, steal=0.123)),
            ],
        )
    ),
    "no disturbance": lambda s: compared(
        s.both(NOISY, NOISY[::-1], conditions=conditions(others=0.02))
    ),
    "slower by CPU time": lambda s: compared(s.disturbed(1.1, 1.1), paired=True),
    "the same by CPU time": lambda s: compared(s.disturbed(1.0, 1.0), paired=True),
    "not slower by CPU time": lambda s: compared(s.disturbed(0.88, 1.0), paired=True),
    "perhaps waiting": lambda s: compared(s.disturbed(1.12, 1.0), paired=True),
    "waiting": lambda s: compared(s.disturbed(1.5, 1.0, CALM), paired=True),
    "more threads": lambda s: compared(s.disturbed(0.8, 1.3, CALM), paired=True),
    "waiting more, computing less": lambda s: compared(s.disturbed(1.3, 0.8, CALM), paired=True),
    "sooner by CPU time": lambda s: compared(
        s.disturbed(1.02, 1.02), paired=True, policy=Policy(threshold=0.025)
    ),
    "all pairs agree": lambda s: compared(s.disturbed(6.0, 1.0, CALM[:6]), paired=True),
    "pauses in every third step": lambda s: compared(s.paused(every(3, 0.05))),
    "pauses in every tenth step": lambda s: compared(s.paused(every(10, 0.16))),
    "pauses at irregular distances": lambda s: compared(
        s.paused(lambda step: 0.08 if step in IRREGULAR else 0.0)
    ),
    "a single pause": lambda s: compared(s.paused(lambda step: 1.2 if step == 70 else 0.0)),
    "runs without a partner": lambda s: compared(s.pairs(range(2, 9), range(1, 8))),
    "no run with a partner": lambda s: compared(s.pairs(range(1, 5), range(5, 9))),
    "pairs that were measured again": lambda s: compared(s.killed()),
    "rules": lambda s: compared(
        (s.runs.with_memory(*[1000] * 5), s.runs.with_memory(*[1500] * 5)), rules=RULES
    ),
    "an accepted regression": lambda s: compared(s.commits(0.8), rules=accepting("2999-12-31")),
    "a regression that was accepted": lambda s: compared(
        s.commits(0.8), rules=accepting("2020-01-01")
    ),
    "all regressions are accepted": lambda s: compared(
        s.commits(0.8), rules=Rules().accepting_all("a known cost")
    ),
    "nothing to accept": lambda s: compared(s.commits(1.2), rules=accepting("2999-12-31")),
    "reductions": lambda s: compared((s.reduced(1.0), s.reduced(0.5))),
    "wrong sums": lambda s: compared((s.reduced(1.0), s.reduced(1.0, wrong=3, checked=100))),
    "an interrupted reduction": lambda s: compared(
        (s.reduced(1.0), [*s.reduced(1.0), s.reductions(6.0, status="interrupted")])
    ),
    "reductions without a metric of runs": lambda s: compared(
        (s.reductions.of(6.0), s.reductions.of(6.0)), metrics=["memory"]
    ),
    "rows that took turns": lambda s: compared((s.reductions.of(*BASE), s.reduced(1.0))),
    "runs and reductions": lambda s: compared(
        (
            [*s.runs.of(*BASE), *s.reductions.of(*BASE)],
            [*s.runs.of(*times(1.1)), *s.reductions.of(*times(0.9))],
        )
    ),
}


def lines_of(found):
    """What a comparison says, one sentence or more a line."""
    yield f"{found.exit_code}: {found.answer}"
    if found.advice:
        yield f"advice: {found.advice}"
    for entry in found.entries:
        for result in entry.results:
            yield f"{entry.name}, {result.metric.name}: {result.word}: {result.judgement.reason}"
        yield from (f"differs: {one}" for one in entry.differences)
    yield from (f"note: {one}" for one in found.notes)


@pytest.fixture
def sides(runs, reductions):
    return Sides(runs, reductions)


def test_sentences(sides, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # which is in no repository
    found = {title: make(sides) for title, make in COMPARED.items()}
    found["unfinished"] = without_tests(found["slower"], "2 of 8 pairs were measured")
    for files in ((), ("a.md",), ("a.md", "b.md", "c.md", "d.md", "e.md")):
        same = SameCode(base="a" * 40, new="b" * 40, files=files)
        found[f"{len(files)} files that no run loads"] = dataclasses.replace(
            found["nothing"], same_code=same
        )
    text = written({**reasons(), **{title: lines_of(one) for title, one in found.items()}})
    assert text == golden(GOLDEN / "sentences.txt", text)


def test_what_imported_measurements_lack_is_listed():
    note = imported_note(["x", None, "x", "y"], ["b", "step_seconds", "a"])
    assert note.startswith("Imported: 2 from x, 1 from y. ")
    assert note.endswith(" Unknown of at least one: a, b.")
    assert "Unknown" not in imported_note(["x"], ["step_seconds"])
    assert imported_note([None], ["a"]) == ""
