"""No order of records, metrics, files, folders or flags changes an answer."""

from __future__ import annotations

import dataclasses
import json
import random

import pytest

from cnnbench.judge.compare import Criteria, compare_records
from cnnbench.judge.history import METRICS as FOLLOWED
from cnnbench.judge.history import all_series, trend
from cnnbench.judge.history.reading import contents
from cnnbench.judge.report import gather
from cnnbench.judge.report.renderers import render
from cnnbench.records.load import Loaded
from cnnbench.records.run import ConditionNote, Conditions, Measured, ModelInfo, StartupSeconds

ASKED = (
    "throughput",
    "memory",
    "startup",
    "accuracy",
    "cpu_time",
    "step_p99_seconds",
    "energy_joules",
)
WIDER = ModelInfo(
    name="lenet",
    parameters=40,
    trainable_parameters=40,
    forward_flops_per_image=80,
    training_flops_per_image=240,
)
BUSY = Conditions(
    before={},
    during={"other_cpus": 1.0, "steal_fraction": 0.0},
    notes=(ConditionNote(id="load", when="during", text="x", advice="y"),),
)
KINDS = ("like", "slower", "faster", "more memory", "failed", "interrupted", "wider", "machine")


class Case:
    """Both sides of a comparison that was never measured, and the metrics that it is about."""

    def __init__(self, runs, seed):
        draw = self.draw = random.Random(seed)
        paired = draw.random() < 0.4
        self.base, self.new = [], []
        for model in draw.sample(("lenet", "vgg11", "alexnet"), draw.choice((1, 1, 2, 3))):
            kind, number = draw.choice(KINDS), draw.choice((3, 6, 8))
            scatter = draw.choice((0.001, 0.02, 0.2))
            busy = draw.random() < 0.5
            for side, made in (("a", self.base), ("b", self.new)):
                for pair in range(number):
                    record = self._run(runs, model, kind if side == "b" else "like", scatter, busy)
                    place = {"side": side, "seed": 7, "pair": pair, "position": 1}
                    made.append(dataclasses.replace(record, ab=place) if paired else record)
        if draw.random() < 0.3:  # clocks that were set, and copies of folders
            at = self.base[0].started_at
            self.base, self.new = (
                [dataclasses.replace(one, started_at=at) for one in side]
                for side in (self.base, self.new)
            )
        self.paired = draw.choice((None, None, True))
        usual = draw.random() < 0.3
        self.metrics = None if usual else draw.sample(ASKED, draw.randint(1, 4))

    def _run(self, runs, model, kind, scatter, busy):
        draw = self.draw
        factor = {"slower": 0.8, "faster": 1.25}.get(kind, 1.0) * (1 + draw.gauss(0, scatter))
        seconds = [0.08 / abs(factor) * (1 + 0.01 * draw.random()) for _ in range(4)]
        parts = {
            "step_seconds": tuple(seconds),
            "step_cpu_seconds": tuple(1.5 * one for one in seconds),
            "startup_seconds": StartupSeconds(
                import_=1.0, build=2.0 + draw.random(), first_step=draw.choice((1.0, 1.0, 9.0))
            ),
            "conditions": BUSY if busy else None,
        }
        if draw.random() < 0.9:
            size = 2**30 * (1.5 if kind == "more memory" else 1.0)
            parts["measured"] = Measured(peak_memory_bytes=int(size * (1 + 0.001 * draw.random())))
        if kind == "wider":
            parts["model"] = WIDER
        broken = kind in ("failed", "interrupted") and draw.random() < 0.3
        environment = {"cpu_model": "Slow CPU"} if kind == "machine" else None
        return runs(
            flags={"model": model},
            environment=environment,
            error=("OSError", "no") if broken and kind == "failed" else None,
            status="interrupted" if broken and kind == "interrupted" else None,
            **parts,
        )

    def shuffled(self):
        """The same with all lists in another order."""
        sides = ([*self.base], [*self.new])
        metrics = None if self.metrics is None else [*self.metrics]
        for each in (*sides, *([metrics] if metrics else [])):
            self.draw.shuffle(each)
        return sides, metrics


@pytest.mark.slow
def test_a_comparison_does_not_depend_on_the_order_of_records_and_metrics(lenet_runs):
    codes, verdicts = set(), set()
    for seed in range(60):
        case = Case(lenet_runs({"usable_cpus": 2}), seed)
        criteria = Criteria(metrics=case.metrics, paired=case.paired)
        first = compare_records(case.base, case.new, criteria)
        results = [one for entry in first.entries for one in entry.results]
        codes.add(int(first.exit_code))
        verdicts |= {one.verdict.value for one in results if one.asked}
        sides, metrics = case.shuffled()
        found = compare_records(*sides, Criteria(metrics=metrics, paired=case.paired))
        assert render(found, "json") == render(first, "json"), seed
        assert render(found, "table") == render(first, "table"), seed
    # The cases have all outcomes.
    assert codes == {0, 1, 3, 4}
    assert verdicts >= {
        *("slower", "faster", "same", "inconclusive", "not measured"),
        *("changed work", "not comparable", "failed"),
    }


@pytest.mark.parametrize("seed", range(100, 106))
def test_nor_does_a_report_against_a_baseline(lenet_runs, seed):
    case = Case(lenet_runs({"usable_cpus": 2}), seed)

    def judged(base, new):
        found = gather(Loaded(tuple(new), ()), Loaded(tuple(base), ()))
        return render(found.comparison, "json")

    first = judged(case.base, case.new)
    sides, _ = case.shuffled()
    assert judged(*sides) == first


@pytest.mark.parametrize("seed", range(3))
def test_nor_does_a_history(by_commit, saved, tmp_path, seed):
    draw = random.Random(seed)
    levels = [100.0] * 8 + [draw.choice((85.0, 120.0))] * 8
    records = by_commit.history(levels, per_commit=2, seed=seed)
    found = []
    for turn in range(3):
        folder = tmp_path / f"{turn}"
        for place in range(3):
            saved(folder / draw.choice("abcdef"), records[place::3])
        (one,) = all_series(contents(folder).entries, FOLLOWED["throughput"])
        trended = trend(one, FOLLOWED["throughput"])
        steps = [(step.index, step.change, step.worse, step.stands) for step in trended.steps]
        found.append(([point.name for point in one.points], steps))
        names = draw.sample(range(99), len(records))  # of files, too
        records = [
            dataclasses.replace(record, run_id=f"run{name}")
            for record, name in zip(records, names, strict=True)
        ]
        draw.shuffle(records)
    assert found[0] == found[1] == found[2]


def test_order_and_names_of_flags_files_and_folders_change_nothing(
    call, lenet_runs, saved, tmp_path
):
    """The command as users call it: every order of its flags, and files by other names."""
    runs = lenet_runs()
    base = saved(tmp_path / "base", runs.of(100.0, 100.2, 99.8, 100.1, 99.9))
    new = saved(tmp_path / "new", runs.of(90.0, 90.2, 89.8, 90.1, 89.9))
    flags = [
        "--metrics=throughput,energy_joules",
        "--threshold=4",
        "--allow_different=hostname,gpu",
    ]
    draw = random.Random(1)
    first = json.loads(call("compare", base, new, *flags, "--format=json", code=1).out)
    for number in range(4):
        sides = []
        for side in (base, new):
            # Folders within folders, whose names and those of files are in another order.
            files = sorted(side.glob("*.json"))
            draw.shuffle(files)
            folder = tmp_path / f"{number}" / f"{draw.random()}"
            for place, file in enumerate(files):
                inner = folder / draw.choice("zya")
                inner.mkdir(parents=True, exist_ok=True)
                (inner / f"{place}.json").write_text(file.read_text())
            sides.append(str(folder))
        flags[0] = "--metrics=" + ",".join(draw.sample(["throughput", "energy_joules"], 2))
        flags[2] = "--allow_different=" + ",".join(draw.sample(["hostname", "gpu"], 2))
        words = ["compare", *sides, *flags, "--format=json"]
        words[1:] = draw.sample(words[3:], len(words) - 3) + words[1:3]
        found = json.loads(call(*words, code=1).out)
        assert {**found, "base": "", "new": ""} == {**first, "base": "", "new": ""}
