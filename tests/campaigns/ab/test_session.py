"""Whole experiments with processes that only write records."""

from __future__ import annotations

import io
import json
import os
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from cnnbench.base.text.progress import Reporter
from cnnbench.campaigns.ab.experiment import Experiment
from cnnbench.campaigns.ab.pairs import Pairs
from cnnbench.campaigns.ab.results import PairsFolder
from cnnbench.campaigns.ab.sequential import interim_analyses
from cnnbench.campaigns.ab.session import ExperimentSession
from cnnbench.campaigns.processes.campaign import Campaign
from cnnbench.errors import ExitCode, FlagError
from cnnbench.judge.compare import Verdict, compare_records, load_records
from cnnbench.judge.report.renderers import render
from cnnbench.records.run import RunRecord

PATIENCE = 30.0

pytestmark = pytest.mark.timeout(120)


def measured(experiment, folder, errors=None, resume=False):
    """The finding of an experiment."""
    with PairsFolder(folder, resume=resume) as results:
        campaign = Campaign(Reporter(errors or io.StringIO()), grace=1.0)
        return ExperimentSession(Pairs(experiment, results, campaign)).run()


class Run:
    """An experiment that has been run."""

    def __init__(self, folder, a, b, *, pairs=8, alpha=0.04, sequential=True, **more):
        self.folder = folder / "results"
        self.errors = io.StringIO()
        settings = {"seed": 1, "burn_in": 0, "timeout": PATIENCE, **more}
        analyses = interim_analyses(pairs, alpha, sequential=sequential)
        self.experiment = Experiment(a=a, b=b, analyses=analyses, **settings)
        self.finding = measured(self.experiment, self.folder, self.errors)

    @property
    def verdict(self):
        (entry,) = self.finding.comparison.entries
        return entry.main.verdict

    def journal(self, event):
        lines = (self.folder / "journal.jsonl").read_text().splitlines()
        return [line for line in map(json.loads, lines) if line["event"] == event]

    def names(self, folder):
        return sorted(path.stem for path in (self.folder / folder).iterdir())


def test_slower_is_found_at_the_first_analysis_and_from_the_files_too(tmp_path, side):
    run = Run(tmp_path, side(speed=100), side(speed=90, salt="b"), pairs=16)
    assert run.verdict is Verdict.SLOWER
    assert run.finding.comparison.exit_code is ExitCode.REGRESSION
    assert run.finding.alpha == pytest.approx(0.008)
    assert run.names("a") == [f"{n:04d}-a" for n in range(1, 9)]
    assert run.names("b") == [f"{n:04d}-b" for n in range(1, 9)]
    assert run.names("discarded") == []
    base, new = (load_records([run.folder / name]).records for name in "ab")
    policy = run.experiment.policy.replace(alpha=run.finding.alpha)
    again = compare_records(base, new, policy, paired=True)
    assert again.entries[0].main == run.finding.comparison.entries[0].main
    assert "after 8 pairs slower" in run.errors.getvalue()


@pytest.mark.parametrize(("scatter", "goes_on"), [(0.05, True), (0.9, False)])
def test_a_look_that_is_not_clear_goes_on_if_there_is_a_chance(tmp_path, side, scatter, goes_on):
    noisy = {"scatter": scatter}
    run = Run(tmp_path, side(**noisy), side(**noisy, salt="b"), pairs=16)
    first = run.journal("look")[0]
    assert first["pairs"] == 8
    assert first["verdicts"] == ["inconclusive"]
    assert (first["chance"] >= 0.05) == goes_on
    assert (len(run.names("a")) > 8) == goes_on
    assert ("going on" if goes_on else "stopped: 16 pairs") in run.errors.getvalue()


def test_the_order_within_pairs_is_drawn_and_told(tmp_path, side, holds):
    run = Run(tmp_path, side(), side(salt="b"), pairs=8, sequential=False, seed=3)
    names = [one["name"] for one in run.journal("process")]
    firsts = [name[-1] for name in names[::2]]
    assert {"a", "b"} == set(firsts)
    assert all(one[:4] == other[:4] for one, other in zip(names[::2], names[1::2], strict=True))
    (start,) = run.journal("ab")
    assert start["seed"] == 3
    document = json.loads((run.folder / "a" / "0002-a.json").read_text())
    holds("run", document)
    holds("journal", start)
    expected = 1 + names[2:4].index("0002-a")
    assert document["ab"] == {"side": "a", "seed": 3, "pair": 2, "position": expected}
    again = Run(tmp_path / "again", side(), side(salt="b"), pairs=8, sequential=False, seed=3)
    assert [one["name"] for one in again.journal("process")] == names


def test_the_order_of_a_pair_does_not_depend_on_those_before_it(tmp_path, side):
    whole = Run(tmp_path, side(), side(salt="b"), pairs=12, sequential=False, seed=3)
    first = Run(tmp_path / "first", side(), side(salt="b"), pairs=6, sequential=False, seed=3)
    longer = interim_analyses(12, 0.04, sequential=False)
    measured(replace(first.experiment, analyses=longer), first.folder, resume=True)
    names = [one["name"] for one in first.journal("process")]
    assert names == [one["name"] for one in whole.journal("process")]
    assert names[0::2][6:] != names[0::2][:6]


def test_burn_in_is_measured_and_does_not_count(tmp_path, side):
    run = Run(tmp_path, side(), side(speed=99, salt="b"), pairs=6, burn_in=2)
    assert run.names("discarded") == [f"burn-in-{n}-{s}" for n in (1, 2) for s in "ab"]
    assert len(run.names("a")) == len(run.names("b")) == 6
    assert len(run.finding.comparison.entries[0].base) == 6
    # Whoever reads the whole directory, for A/A runs as an example, sees those that count.
    loaded = load_records([run.folder])
    assert (len(loaded.records), loaded.skipped) == (12, ())
    assert "[1/16] burn-in 1" in run.errors.getvalue()


@pytest.mark.parametrize(("step", "steps"), [(0.02, 250), (1.0, 20), (1e-5, 10_000)])
def test_the_slower_side_decides_how_many_steps_take_so_long(
    tmp_path, side, lenet_runs, step, steps
):
    images = lenet_runs()().batch.global_
    speeds = {"a": images / step, "b": 2 * images / step}
    sides = (side("--x=1", speed=speed, scatter=0, salt=name) for name, speed in speeds.items())
    run = Run(tmp_path, *sides, pairs=1, burn_in=1, timed_seconds=5.0)
    records = {
        path.name: json.loads(path.read_text())
        for folder in ("a", "b", "discarded")
        for path in (run.folder / folder).iterdir()
    }
    chosen = {name: int(one["config"]["num_batches"]) for name, one in records.items()}
    burn_in = {f"burn-in-1-{name}.discarded": 20 for name in "ab"}
    assert chosen == burn_in | {f"0001-{name}.json": steps for name in "ab"}
    (event,) = run.journal("steps")
    assert (event["num_batches"], event["step_seconds"]) == (steps, pytest.approx(step))
    assert f"{steps} timed steps in each process" in run.errors.getvalue()


@pytest.mark.parametrize(("busy", "seconds"), [({}, 5.0), ({"busy": 1.0}, 10.0)])
def test_processes_take_longer_where_other_programs_use_the_cpus(
    tmp_path, side, lenet_runs, busy, seconds
):
    speed = lenet_runs()().batch.global_ / 0.02
    sides = (side("--x=1", speed=speed, scatter=0, salt=name, **busy) for name in "ab")
    lengths = {"timed_seconds": 5.0, "disturbed_seconds": 10.0}
    run = Run(tmp_path, *sides, pairs=1, burn_in=1, **lengths)
    (event,) = run.journal("steps")
    assert event["num_batches"] == seconds / 0.02
    assert ("other programs use the CPUs: 500 timed" in run.errors.getvalue()) == bool(busy)


def test_cpu_time_ends_an_experiment_that_other_programs_disturb(tmp_path, side):
    noisy = {"scatter": 0.9, "busy": 1.0}
    run = Run(tmp_path, side(cpu=0.08, **noisy), side(cpu=0.09, salt="b", **noisy), pairs=16)
    (entry,) = run.finding.comparison.entries
    assert (run.verdict, entry.main.judgement.decided_by) == (Verdict.SLOWER, "cpu_time")
    assert len(run.names("a")) == 8  # all of the first analysis' level is CPU time's
    assert "after 8 pairs slower: CPU time 12.5 % more" in run.errors.getvalue()


def test_an_experiment_goes_on_while_cpu_time_may_still_decide(tmp_path, side):
    noisy = {"scatter": 0.9, "busy": 1.0, "cpu_scatter": 0.05}
    run = Run(tmp_path, side(cpu=0.08, **noisy), side(cpu=0.083, salt="b", **noisy), pairs=16)
    (look, *_) = run.journal("look")
    without = Run(tmp_path / "wall", side(**noisy), side(salt="b", **noisy), pairs=16)
    assert look["chance"] > without.journal("look")[0]["chance"]


def test_without_burn_in_the_flags_say_how_many_steps(tmp_path, side):
    run = Run(tmp_path, side("--num_batches=7"), side(salt="b"), pairs=1, timed_seconds=5.0)
    document = json.loads((run.folder / "a" / "0001-a.json").read_text())
    assert document["config"]["num_batches"] == "7"
    assert not run.journal("steps")


def test_progress_tells_figures_and_the_time_left(tmp_path, side):
    run = Run(tmp_path, side(wait=0.05), side(wait=0.05, salt="b"), pairs=3)
    lines = [line for line in run.errors.getvalue().splitlines() if "/6] " in line]
    assert len(lines) == 6
    assert lines[0].startswith("cnnbench: [1/6] pair 1 ")
    assert " images/sec (" in lines[0]
    assert "ETA" in lines[0]
    assert "ETA" not in lines[-1]


@pytest.mark.parametrize(("failing", "crash"), [("a", False), ("b", True)])
def test_a_process_that_fails_ends_it_with_records_of_both_sides(tmp_path, side, failing, crash):
    sides = {
        name: side(fail=[f"0003-{name}"] if name == failing else [], crash=crash, salt=name)
        for name in "ab"
    }
    run = Run(tmp_path, sides["a"], sides["b"])
    assert run.verdict is Verdict.FAILED
    assert run.finding.comparison.exit_code is ExitCode.FAILED
    word = "ended by SIGSEGV; last log line: segmentation violation" if crash else "no good"
    assert run.finding.failure == f"{failing.upper()}: {word}"
    assert not run.finding.lost
    assert run.journal("lost") == []
    assert len(run.names("a")) == len(run.names("b")) == 3
    assert len(run.journal("process")) == 6


class Kills:
    """Sides whose processes are ended by a signal, so often by the names of their records."""

    def __init__(self, folder, side):
        self._folder, self._side = folder, side

    def __call__(self, name, kill=(), **say):
        say = {"kill": dict(kill), "kills": str(self._folder), "salt": name, **say}
        return self._side(**say)


@pytest.fixture
def kills(tmp_path, side):
    """What makes sides of which processes are killed."""
    return Kills(tmp_path, side)


def _order(run):
    """The names of the processes, without those of lost pairs."""
    names = [one["name"] for one in run.journal("process")]
    pairs = [names[i : i + 2] for i in range(0, len(names), 2)]
    return [pair for pair, later in zip(pairs, [*pairs[1:], None], strict=True) if pair != later]


def test_a_pair_that_lost_a_process_is_measured_again_and_counted(tmp_path, kills, holds):
    a, b = kills("a", {"0005-a": 1}), kills("b", {"0003-b": 2})
    run = Run(tmp_path / "some", a, b, pairs=12)
    assert run.verdict is Verdict.SAME
    assert run.finding.comparison.exit_code is ExitCode.OK
    found = [(one["pair"], one["lost"], one["again"]) for one in run.journal("lost")]
    how = "killed by SIGKILL"
    lost = [{"side": "b", "how": how}]
    assert found == [*[("0003", lost, True)] * 2, ("0005", [{"side": "a", "how": how}], True)]
    assert "pair 5 is measured again: A was killed by SIGKILL" in run.errors.getvalue()
    assert run.names("a") == [f"{n:04d}-a" for n in range(1, 9)]
    aside = ["0003-a-lost-1", "0003-a-lost-2", "0003-b-lost-1", "0003-b-lost-2"]
    aside += ["0005-a-lost-1", "0005-b-lost-1"]
    assert run.names("discarded") == aside
    assert set(aside) < set(run.names("logs"))
    # The order of every pair is that which the seed draws without a loss, too.
    calm = Run(tmp_path / "calm", kills("a"), kills("b"), pairs=12)
    assert _order(run) == _order(calm)
    # Whoever compares the records finds them.
    base, new = (load_records([run.folder / name]).records for name in "ab")
    note = (
        "2 pairs were measured again: a process of B was killed by SIGKILL (2 times), "
        "a process of A was killed by SIGKILL"
    )
    for comparison in (run.finding.comparison, compare_records(base, new, paired=True)):
        assert comparison.notes == (note,)
        assert comparison.repeated_pairs == 2
    holds("comparison", json.loads(render(comparison, "json")))
    holds("run", json.loads((run.folder / "b" / "0003-b.json").read_text()))
    holds("journal", *run.journal("lost"))
    suite = ElementTree.fromstring(render(comparison, "junit")).find("testsuite")
    assert suite.find("properties/property[@name='repeated_pairs']").get("value") == "2"


def test_a_burn_in_that_lost_a_process_is_repeated_too(tmp_path, kills):
    run = Run(tmp_path, kills("a", {"burn-in-1-a": 1}), kills("b"), burn_in=1)
    assert run.verdict is Verdict.SAME
    assert [one["pair"] for one in run.journal("lost")] == ["burn-in-1"]
    assert run.finding.comparison.notes == ()  # it does not count


@pytest.mark.parametrize(
    ("killed", "told"),
    [
        ({"0002-b": 9}, "no repeat is left: pair 2 had 2 of 2, all pairs 2 of 2"),
        (
            {"0001-b": 1, "0002-b": 1, "0003-b": 1},
            "no repeat is left: pair 3 had 0 of 2, all pairs 2 of 2",
        ),
    ],
)
def test_repeats_end_and_a_resumed_experiment_does_not_start_them_again(
    tmp_path, kills, killed, told
):
    run = Run(tmp_path, kills("a"), kills("b", killed))
    assert run.finding.failure.startswith("B: ended by SIGKILL; last log line: about to measure")
    assert run.finding.failure.endswith(told)
    assert run.finding.lost
    assert run.verdict is Verdict.FAILED
    assert run.finding.comparison.exit_code is ExitCode.FAILED
    again = replace(run.experiment, b=kills("b", dict.fromkeys(killed, 99)))
    processes = len(run.journal("process"))
    finding = measured(again, run.folder, resume=True)
    assert finding.failure == run.finding.failure
    assert len(run.journal("process")) == processes + 2
    # What was lost before the end of the first session is counted at the end of another one.
    calm = replace(run.experiment, b=kills("b"))
    finding = measured(calm, run.folder, resume=True)
    assert finding.failure == ""
    assert finding.comparison.repeated_pairs == len({name[:4] for name in killed if name < "0003"})


@pytest.mark.usefixtures("real_processes")
def test_who_fails_by_itself_beside_one_that_is_killed_ends_it(tmp_path, kills):
    b = kills("b", fail=["0001-b"])
    run = Run(tmp_path, kills("a", {"0001-a": 1}), b)
    assert run.finding.failure == "A: ended by SIGKILL; last log line: about to measure; B: no good"
    assert run.journal("lost") == []
    (entry,) = run.finding.comparison.entries
    assert "1 of 1 run in BASE failed: Killed: ended by SIGKILL" in entry.main.judgement.reason
    assert "1 of 1 run in NEW failed: BenchmarkError: no good" in entry.main.judgement.reason


def test_a_process_that_hangs_is_a_failure(tmp_path, side):
    run = Run(tmp_path, side(), side(wait=PATIENCE), pairs=1, timeout=0.5)
    assert run.finding.failure.startswith("B: killed after ")
    assert run.verdict is Verdict.FAILED


def test_sides_on_unlike_machines_are_told_after_one_pair(tmp_path, side):
    run = Run(tmp_path, side(), side(facts={"cpu_model": "Slow CPU"}))
    assert run.verdict is Verdict.NOT_COMPARABLE
    assert len(run.names("a")) == 1
    assert run.finding.comparison.exit_code is ExitCode.INCONCLUSIVE


def test_an_interrupt_keeps_whole_pairs_and_judges_them(tmp_path, side):
    a, b = side(interrupt=["0007-a"]), side(speed=80, interrupt=["0007-b"])
    run = Run(tmp_path, a, b, pairs=8, sequential=False)
    assert run.finding.interrupted
    assert len(run.names("a")) == len(run.names("b")) == 6
    assert run.verdict is Verdict.SLOWER  # six pairs reach p = 0.031
    (end,) = run.journal("end")
    assert end["interrupted"] is True
    assert len(run.journal("process")) == 12


def test_an_interrupt_between_the_halves_of_a_pair_keeps_the_half_aside(tmp_path, side):
    probe = Run(tmp_path / "probe", side(), side(salt="b"), pairs=3)
    second = probe.journal("process")[5]["name"]
    run = Run(tmp_path, side(interrupt=[second]), side(salt="b", interrupt=[second]), pairs=3)
    assert run.names("discarded") == [probe.journal("process")[4]["name"]]
    assert len(load_records([run.folder]).records) == 4
    assert len(run.names("a")) == len(run.names("b")) == 2
    assert run.verdict is Verdict.INCONCLUSIVE


def test_an_interrupt_before_anything_was_measured(tmp_path, side):
    run = Run(tmp_path, side(interrupt=["0001-a"]), side(interrupt=["0001-b"]))
    assert run.finding.interrupted
    assert run.finding.comparison.entries == ()


@pytest.mark.usefixtures("real_processes")
def test_processes_of_an_experiment_follow_each_other(tmp_path, side):
    trace = tmp_path / "trace"
    run = Run(tmp_path, side(trace=str(trace)), side(trace=str(trace)), pairs=2)
    names = trace.read_text().splitlines()
    assert names == [one["name"] for one in run.journal("process")]
    times = [one["time"] for one in run.journal("process")]
    assert all(one <= other for one, other in pairwise(times))


def test_cool_down_is_kept_between_processes(tmp_path, side, monkeypatch):
    slept = []
    monkeypatch.setattr("cnnbench.campaigns.processes.campaign.time.sleep", slept.append)
    Run(tmp_path, side(), side(salt="b"), pairs=2, cool_down=7.5)
    assert slept == [7.5] * 3


def test_values_of_variables_are_told_nowhere(tmp_path, side):
    run = Run(tmp_path, side(secret="hunter2"), side(secret="hunter2", salt="b"), pairs=1)
    for path in run.folder.rglob("*"):
        assert path.is_dir() or "hunter2" not in path.read_text()
    assert "hunter2" not in run.errors.getvalue()


def test_a_folder_with_results_is_refused(tmp_path):
    (tmp_path / "old.json").touch()
    with pytest.raises(FlagError, match="is not empty"):
        PairsFolder(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["old.json"]
    (tmp_path / "old.json").unlink()
    with PairsFolder(tmp_path):
        holder = f"another process is writing there: pid {os.getpid()} on "
        with pytest.raises(FlagError, match=holder):
            PairsFolder(tmp_path, resume=True)
    with pytest.raises(FlagError, match="cannot be used"):
        PairsFolder(os.devnull)


IN_TURN = {"turn_seconds": 0.05}


def test_both_halves_of_a_pair_are_alive_where_they_step_in_turn(tmp_path, side):
    trace = tmp_path / "trace"
    say = {"trace": str(trace)}
    run = Run(tmp_path, side(**say), side(speed=80, **say), pairs=3, burn_in=1, **IN_TURN)
    (start,) = run.journal("ab")
    assert start["turn_seconds"] == 0.05
    names = [one["name"] for one in run.journal("process")]
    said = trace.read_text().splitlines()
    for first in range(0, 8, 2):
        pair = names[first : first + 2]
        assert set(said[2 * first : 2 * first + 2]) == set(pair)  # both have started
        assert said[2 * first + 2 : 2 * first + 4] == pair  # then they step, in the drawn order
    places = [
        json.loads((run.folder / name[-1] / f"{name}.json").read_text())["ab"]["position"]
        for name in names[2:]
    ]
    assert places == [1, 2] * 3
    assert {name[-1] for name in names[::2]} == {"a", "b"}


def test_a_pair_that_lost_a_process_in_turn_is_measured_again(tmp_path, kills):
    run = Run(tmp_path, kills("a"), kills("b", {"0001-b": 1}), pairs=1, **IN_TURN)
    assert [(one["pair"], one["again"]) for one in run.journal("lost")] == [("0001", True)]
    assert (run.names("a"), run.names("b")) == (["0001-a"], ["0001-b"])


@pytest.mark.parametrize(
    ("say", "told"), [({"die": "no more"}, "no more"), ({"wait": PATIENCE}, "killed after")]
)
def test_a_side_lost_in_turn_leaves_the_record_of_the_other(tmp_path, side, say, told):
    run = Run(tmp_path, side(), side(**say), pairs=1, timeout=1.0, **IN_TURN)
    assert run.verdict is Verdict.FAILED
    assert told in run.finding.failure
    a, b = (RunRecord.from_json((run.folder / s / f"0001-{s}.json").read_bytes()) for s in "ab")
    assert (a.status, b.status) == ("ok", "failed")


def test_an_interrupt_in_turn_keeps_whole_pairs(tmp_path, side):
    run = Run(tmp_path, side(), side(interrupt=["0002-b"]), pairs=3, **IN_TURN)
    assert run.finding.interrupted
    assert len(run.names("a")) == len(run.names("b")) == 1
    assert run.verdict is Verdict.INCONCLUSIVE
