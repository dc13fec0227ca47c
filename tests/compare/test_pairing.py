import pytest

from cnnbench.compare import Verdict, compare_records


@pytest.fixture
def experiment(runs):
    """experiment(speeds, factor): the records of A and of B, B's speeds being A's by factor."""

    def make(speeds=(100.0, 90.0, 80.0, 70.0, 60.0, 50.0, 40.0, 30.0), factor=0.9, seed=1):
        sides = ([], [])
        for number, speed in enumerate(speeds, start=1):
            for side, records, value in zip("ab", sides, (speed, speed * factor), strict=True):
                records.append(runs(value, ab={"side": side, "seed": seed, "pair": number}))
        return sides

    return make


def judged(base, new):
    found = compare_records(base, new, metrics=["throughput"], paired=True)
    ((result,),) = (entry.results for entry in found.entries)
    return found, result


def test_partners_are_found_by_the_number_of_their_pair(experiment):
    a, b = experiment()
    found, result = judged(a[1:], b[:-1])
    assert result.verdict is Verdict.SLOWER
    assert result.judgement.change == pytest.approx(-0.1)
    assert found.notes == ("lenet, batch 8, 1 cpu: 2 runs left out, without a partner",)
    (entry,) = found.entries
    assert [one.run_id for one in entry.base] == [one.run_id for one in a[1:-1]]
    assert [one.run_id for one in entry.new] == [one.run_id for one in b[1:-1]]
    # All of them, whatever their order, leave nothing out.
    found, result = judged(a[::-1], b)
    assert (found.notes, len(result.base)) == ((), 8)


def test_pairs_of_several_experiments_keep_apart(experiment):
    (a1, b1), (a2, b2) = experiment(seed=1), experiment(seed=2)
    found, result = judged([*a1, *a2[1:]], [*b1[1:], *b2])
    assert found.notes == ("lenet, batch 8, 1 cpu: 2 runs left out, without a partner",)
    assert result.base == pytest.approx([value / 0.9 for value in result.new])


def test_no_pair_is_whole(experiment):
    a, b = experiment()
    _, result = judged(a[:4], b[4:])
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.judgement.reason == "no run in BASE has its partner in NEW"


def test_runs_of_no_common_experiment_are_paired_by_their_start(experiment, runs):
    a, b = experiment(seed=1)
    for base, new in (
        (a, experiment(seed=2)[1]),  # another experiment
        (a, b[:-1] + runs.of(27.0)),  # a run of none
        (a + experiment((20.0,))[0], b + experiment((20.0,))[1]),  # two of one pair
    ):
        found, result = judged(base, new)
        assert found.notes == ()
        assert len(result.base) == len(result.new) == len(base)
        assert result.verdict is Verdict.SLOWER


@pytest.mark.parametrize("place", [{}, {"seed": 1}, {"seed": 1, "pair": [1]}, {"pair": 1}])
def test_a_place_that_names_no_pair_is_none(experiment, runs, place):
    a, b = experiment()
    found, result = judged(a, b[:-1] + runs.of(27.0, ab=place))
    assert (found.notes, len(result.new)) == ((), 8)


def test_a_run_that_failed_is_not_left_out(experiment, runs):
    a, b = experiment()
    failed = runs(None, error=("Error", "no"), ab={"side": "b", "seed": 1, "pair": 9})
    _, result = judged(a, [*b, failed])
    assert result.verdict is Verdict.FAILED
