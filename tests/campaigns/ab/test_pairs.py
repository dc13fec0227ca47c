"""Whole experiments whose processes never start: orders, analyses, failures and going on.

Tests cnnbench/campaigns/ab/pairs.py and cnnbench/campaigns/ab/sessions.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any, TypeAlias

import pytest
from stand_ins import StandIns, failed, value_of, well

from cnnbench.base import terminal
from cnnbench.base.inference import FIRST_ANALYSIS
from cnnbench.campaigns.ab.experiment import AB, Experiment, pair_file_prefix
from cnnbench.campaigns.ab.pairs import ExperimentRunner
from cnnbench.campaigns.ab.sessions import (
    find_experiment,
    find_only_experiment,
    load_complete_pairs,
)
from cnnbench.campaigns.ab.side import AbSide
from cnnbench.campaigns.processes.child import ProcessResult
from cnnbench.campaigns.processes.identity import Identity
from cnnbench.campaigns.processes.journal import JOURNAL, Journal
from cnnbench.campaigns.processes.outcome import BenchmarkCommand
from cnnbench.campaigns.processes.results_dir import ResultsFolder
from cnnbench.errors import PathError
from cnnbench.judge.compare import Comparison, Criteria, Verdict, compare_records
from cnnbench.records.run import RunRecord
from cnnbench.records.subject import Subject

ENDS = {
    "failed": failed,
    "killed": lambda record: replace(failed(record, "killed"), **KILLED),
}
End: TypeAlias = str | BaseException
KILLED = {"status": "killed", "lost": "killed by SIGKILL"}


def side_processes(
    runs: Callable[..., RunRecord],
    speed: float,
    ends: Mapping[str, End | list[End]],
    edited: str,
) -> StandIns:
    """Processes of A have the speed 100, those of B another one.

    Args:
      runs: makes records.
      speed: of B.
      ends: how processes end, by name: a word of `ENDS`, or an exception. A list has one for each
        attempt.
      edited: name of the first process of B that differs in a recorded property.
    """

    def end(command: BenchmarkCommand) -> ProcessResult:
        name = command.log.stem
        command.log.write_text("said")
        made = (100.0 if name.endswith("-a") else speed) * (1 + 0.002 * (len(name) % 3))
        made *= 1 + 0.001 * (len(campaign.started) * 7 % 5)
        record = runs(made, steps=5)
        if name[0].isdigit() and name.endswith("-b") and name >= edited:
            record = replace(record, environment={**record.environment, "env_EDITED": "1"})
        how = ends.get(name, "")
        if isinstance(how, list):
            how = how.pop(0)
        if isinstance(how, BaseException):
            raise how
        return replace(ENDS.get(how, well)(record), seconds=3.0)

    campaign = StandIns(end)
    return campaign


Ran = Callable[..., tuple[ExperimentRunner, StandIns]]


@pytest.fixture
def ran(tmp_path: Path, runs: Callable[..., RunRecord]) -> Ran:
    """ran(SPEED, NAME=END, ...): an experiment of at most 16 pairs, which has ended."""

    def ran(
        speed: float,
        ends: Mapping[str, End | list[End]] | None = None,
        *,
        resume: bool = False,
        within: bool = False,
        edited: str = "z",
        **more: Any,
    ) -> tuple[ExperimentRunner, StandIns]:
        campaign = side_processes(runs, speed, ends or {}, edited)
        folder = tmp_path / "r"
        sides = {
            name: AbSide(flags=("--model=lenet",), subject=Subject(side=name)) for name in "ab"
        }
        values = {"most_pairs": 16, "seed": 1, "timeout": 60.0, **more}
        identity = None if within else Identity(plans={}, code={}, software={}, policy={})
        experiment = Experiment(identity=identity, **values).with_sides(sides)
        with ResultsFolder(AB, folder, experiment, resume=resume) as results:
            runner = ExperimentRunner(experiment, sides, results, campaign)
            campaign.run_requests(runner.requests())
        return runner, campaign

    return ran


def verdict(runner: ExperimentRunner) -> Verdict:
    (entry,) = runner.comparison.entries
    return entry.main.verdict


def test_a_clear_difference_ends_at_the_first_analysis(ran: Ran, tmp_path: Path) -> None:
    runner, campaign = ran(50.0)
    assert (verdict(runner), runner.is_judged, runner.failure) == (Verdict.SLOWER, True, "")
    assert sorted(campaign.names[:2]) == ["burn-in-1-a", "burn-in-1-b"]
    pairs = [sorted(campaign.names[at : at + 2]) for at in range(2, len(campaign.names), 2)]
    assert pairs == [
        [f"{pair_file_prefix(n)}-a", f"{pair_file_prefix(n)}-b"]
        for n in range(1, FIRST_ANALYSIS + 1)
    ]
    # Which of A and B runs first is drawn.
    assert {name[-1] for name in campaign.names[::2]} == {"a", "b"}
    assert len(load_complete_pairs(tmp_path / "r")) == FIRST_ANALYSIS
    assert [len(records) for records in runner.records.values()] == [FIRST_ANALYSIS] * 2
    assert runner.seconds_per_pair == 6.0
    first = runner.records["b"][0]
    assert [first.ab[name] for name in ("side", "pair", "seed")] == ["b", 1, 1]
    assert {runner.records[side][0].ab["position"] for side in "ab"} == {1, 2}
    state = find_experiment(tmp_path / "r")
    assert state.last_end_event["judged"]
    assert (state.has_clear_verdict, state.is_resumable) == (True, False)
    assert (state.pair_limits[0], state.pair_limits[-1]) == (16, 16)
    again = state.final_comparison()
    assert [entry.main.verdict for entry in again.entries] == [Verdict.SLOWER]


def test_every_analysis_is_computed_once(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    analysed: list[int] = []

    def compare(base: Sequence[RunRecord], *more: Any, **named: Any) -> Comparison:
        analysed.append(len(base))
        return compare_records(base, *more, **named)

    monkeypatch.setattr("cnnbench.campaigns.ab.sessions.compare_records", compare)
    runner, _ = ran(50.0)
    assert (verdict(runner), analysed) == (Verdict.SLOWER, [1, FIRST_ANALYSIS])
    # A session that only judges what is there.
    analysed.clear()
    runner, _ = ran(50.0, resume=True)
    assert (verdict(runner), analysed) == (Verdict.SLOWER, [FIRST_ANALYSIS])


def test_the_order_is_that_of_the_seed(ran: Ran, tmp_path: Path) -> None:
    orders = []
    for seed in (1, 1, 2):
        _, campaign = ran(50.0, seed=seed)
        orders.append(campaign.names)
        (tmp_path / "r").rename(tmp_path / str(len(orders)))
    assert orders[0] == orders[1] != orders[2]


def test_no_burn_in_and_no_analyses_between(ran: Ran) -> None:
    runner, campaign = ran(50.0, burn_in=0, most_pairs=10, sequential=False)
    assert len(campaign.names) == 20
    assert runner.analyses.most_pairs == 10
    assert len(runner.analyses.left) == 1


@pytest.mark.parametrize("within", [False, True])
def test_a_failed_process_ends_the_experiment_without_tests(
    ran: Ran, tmp_path: Path, within: bool
) -> None:
    runner, campaign = ran(50.0, {"0002-b": "failed"}, within=within)
    assert (runner.failure, runner.lost, runner.is_judged) == ("B: no good", False, False)
    assert sorted(campaign.names[-2:]) == ["0002-a", "0002-b"]
    assert [len(records) for records in runner.records.values()] == [2, 2]
    assert len(load_complete_pairs(tmp_path / "r")) == 1
    end = find_experiment(tmp_path / "r").last_end_event
    assert (end["failure"], end["pairs"], end["judged"]) == ("B: no good", 2, False)


def test_a_pair_unlike_the_first_one_ends_the_experiment(ran: Ran, tmp_path: Path) -> None:
    runner, campaign = ran(50.0, edited="0003-b")
    assert sorted(campaign.names[-2:]) == ["0003-a", "0003-b"]
    assert (verdict(runner), runner.is_judged) == (Verdict.NOT_COMPARABLE, True)
    assert "env_EDITED" in runner.comparison.answer
    assert sum("3 pairs" in line for line in campaign.said.getvalue().splitlines()) == 1
    assert len(load_complete_pairs(tmp_path / "r")) == 3
    assert find_experiment(tmp_path / "r").last_end_event["pairs"] == 3


def test_a_burn_in_that_fails_ends_it_too(ran: Ran) -> None:
    runner, campaign = ran(50.0, {"burn-in-1-a": "failed"})
    assert runner.failure == "A: no good"
    assert len(campaign.names) == 2


def test_pairs_that_are_killed_are_left_out_but_not_two_in_a_row(ran: Ran, tmp_path: Path) -> None:
    runner, campaign = ran(50.0, {f"000{n}-b": ["killed", ""] for n in (2, 3, 4)})
    assert (verdict(runner), runner.failure) == (Verdict.SLOWER, "")
    assert [campaign.names.count(f"000{n}-{side}") for n in (1, 2, 3, 4) for side in "ab"] == [
        *(1, 1, 2, 2, 2, 2, 2, 2)
    ]
    assert [len(records) for records in runner.records.values()] == [FIRST_ANALYSIS] * 2
    (tmp_path / "r").rename(tmp_path / "before")
    runner, campaign = ran(50.0, {"0003-a": ["killed", "killed"]})
    assert (runner.lost, runner.is_judged) == (True, False)
    assert runner.failure == "A: killed; twice in a row"
    assert campaign.names[-4:].count("0003-a") == 2
    assert len(load_complete_pairs(tmp_path / "r")) == 2


def test_an_interrupt_keeps_the_pairs_and_the_experiment_goes_on(ran: Ran, tmp_path: Path) -> None:
    runner, first = ran(50.0, {"0004-a": KeyboardInterrupt()})
    assert (runner.interrupted, runner.failure, runner.is_judged) == (True, "", False)
    assert len(load_complete_pairs(tmp_path / "r")) == 3
    state = find_experiment(tmp_path / "r")
    assert (state.past_analyses, state.is_resumable) == ((), True)
    assert state.last_end_event["interrupted"]
    runner, later = ran(50.0, resume=True)
    assert runner.earlier == 3
    assert not {name for name in first.names if name < "0004"} & {*later.names}
    assert (verdict(runner), len(runner.records["a"])) == (Verdict.SLOWER, FIRST_ANALYSIS)


def test_a_killed_experiment_is_reported_without_a_verdict(ran: Ran, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):  # no event at the end of the session, as after SIGKILL
        ran(50.0, {"0001-b": RuntimeError("as killed")})
    assert find_experiment(tmp_path / "r").final_comparison() is None
    with pytest.raises(RuntimeError):
        ran(50.0, {"0004-b": RuntimeError("as killed")}, resume=True)
    (entry,) = find_experiment(tmp_path / "r").final_comparison().entries
    assert (entry.main.verdict, entry.main.judgement.p) == (Verdict.INCONCLUSIVE, None)
    assert entry.main.judgement.change == pytest.approx(-0.5, abs=0.02)
    assert (len(entry.base), len(entry.new)) == (3, 3)
    # A clear verdict stands, even if a later session was killed.
    ran(50.0, resume=True)
    Journal(tmp_path / "r" / JOURNAL).add("session", campaign="ab", pairs=16)
    (entry,) = find_experiment(tmp_path / "r").final_comparison().entries
    assert entry.main.verdict is Verdict.SLOWER


def test_within_a_campaign_interrupts_go_on(ran: Ran) -> None:
    with pytest.raises(KeyboardInterrupt):
        ran(50.0, {"0002-a": KeyboardInterrupt()}, within=True)


def test_an_experiment_with_a_clear_verdict_measures_nothing_more(ran: Ran) -> None:
    ran(50.0)
    runner, campaign = ran(50.0, resume=True, most_pairs=32)
    assert campaign.names == []
    assert verdict(runner) is Verdict.SLOWER


def test_records_that_were_measured_must_be_there(ran: Ran, tmp_path: Path) -> None:
    ran(50.0)
    record = tmp_path / "r" / "a" / "0003-a.json"
    record.write_bytes((tmp_path / "r" / "a" / "0002-a.json").read_bytes())
    with pytest.raises(PathError, match=r"0003-a\.json"):
        find_experiment(tmp_path / "r")


def test_equal_sides_are_measured_to_the_last_analysis_or_are_the_same(ran: Ran) -> None:
    runner, campaign = ran(100.0, most_pairs=12)
    assert verdict(runner) in (Verdict.SAME, Verdict.NOT_SLOWER)
    assert "going on" in campaign.said.getvalue() or len(runner.records["a"]) == FIRST_ANALYSIS


@pytest.mark.parametrize(("seconds", "flag"), [(0.0, False), (8.0, True)])
def test_the_number_of_steps_is_chosen_where_seconds_are_asked_for(
    ran: Ran, seconds: float, flag: bool
) -> None:
    _, campaign = ran(50.0, timed_seconds=seconds)
    lengths = {one.log.stem: value_of(one, "num_batches") for one in campaign.started}
    assert all(bool(length) is flag for length in lengths.values())
    if flag:
        # The slower side takes 0.16 s for a step of 8 images.
        assert len({length for name, length in lengths.items() if name < "1"}) == 1
        assert lengths["0001-a"] != lengths["burn-in-1-a"]


def test_metrics_divide_alpha(ran: Ran) -> None:
    runner, _ = ran(50.0, criteria=Criteria(metrics=("throughput", "memory")))
    experiment = runner.experiment
    assert experiment.smallest_alpha_share == 0.5
    assert experiment.smallest_alpha == 0.5 * experiment.criteria.policy.alpha
    assert not experiment.judges_step_statistics
    other = replace(experiment, criteria=Criteria(metrics=("step_p99_seconds",)))
    assert other.judges_step_statistics
    assert other.smallest_alpha_share == 1.0


def test_experiments_are_found_in_folders(ran: Ran, tmp_path: Path) -> None:
    assert find_experiment(tmp_path) is None
    assert find_only_experiment(tmp_path / "none") is None
    ran(50.0)
    assert find_only_experiment(tmp_path).folder == tmp_path / "r"
    assert find_only_experiment(tmp_path / "r").folder == tmp_path / "r"
    for name in ("r/copy", "second"):
        copytree(tmp_path / "r", tmp_path / "new", dirs_exist_ok=True)
        (tmp_path / "new").rename(tmp_path / name)
    # An experiment counts, whatever is below it; of two beside each other, neither does.
    assert find_only_experiment(tmp_path / "r").folder == tmp_path / "r"
    assert find_only_experiment(tmp_path) is None


def test_a_terminal_shows_the_pair_and_the_change_so_far(
    ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "is_terminal", lambda stream: True)
    _, campaign = ran(50.0)
    shown = re.findall(r"\x1b\[K(pair [^\r]+)", campaign.said.getvalue())
    assert shown[0].startswith("pair 1/16 ... 0 s")
    assert re.match(r"pair 8/16, throughput -(49|50)\.\d % so far \.\.\. 0 s", shown[-1])
    assert not re.search("slower|faster|same", " ".join(shown))
    assert not campaign.said.getvalue().endswith("left")
