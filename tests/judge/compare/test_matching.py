"""Configurations of two sides that are put side by side, and pairs."""

from datetime import datetime, timezone

import pytest

from cnnbench.judge.compare import Criteria, Verdict, compare_records
from cnnbench.judge.compare.matching import (
    MeasuredProcess,
    are_sides_of_experiment,
    compared_commit_lookup,
    compared_commit_text,
    match_complete_pairs,
    pair_id_of,
    revision_of,
)
from cnnbench.judge.metrics.origin import Origin


def matched(base, new, *allowed):
    """Pairs as batch sizes, with "xla" where that is on; None for a side that lacks it."""

    def name(records):
        if not records:
            return None
        flags = records[0].config
        return f"{flags['model']} {flags['batch_size']}{' xla' if flags['xla'] else ''}"

    found = compare_records(base, new, Criteria(allow_different=allowed))
    return sorted(((name(one.base), name(one.new)) for one in found.entries), key=str)


def grouped(*records):
    """Records by configuration."""
    return [[*entry.base] for entry in compare_records(records, []).entries]


def test_repeats_come_together_in_order_of_their_start(runs):
    first, second, other = runs(), runs(), runs(flags={"batch_size": 16})
    assert grouped(other, second, first) == [[first, second], [other]]
    # Starts are moments, not texts.
    times = ("2026-11-20T23:30:00+09:00", "2026-11-20T10:00:00-05:00", "2026-11-20T15:30:00Z")
    made = [runs(started_at=time) for time in times]
    assert grouped(*made[::-1]) == [made]


def test_what_only_one_side_has_stays_alone(runs):
    shared = {"model": "resnet20"}
    base = [runs(flags=shared), runs()]
    new = [runs(flags=shared), runs(flags={"model": "alexnet"})]
    # lenet and alexnet are the only ones left, so they are taken for what was meant.
    assert matched(base, new) == [("lenet 8", "alexnet 8"), ("resnet20 8", "resnet20 8")]
    new.append(runs(flags={"model": "vgg11"}))
    assert matched(base, new) == [
        ("lenet 8", None),
        ("resnet20 8", "resnet20 8"),
        (None, "alexnet 8"),
        (None, "vgg11 8"),
    ]


def test_the_nearest_variants_are_put_side_by_side(runs):
    base = [runs(), runs(flags={"xla": True})]
    new = [
        runs(flags={"batch_size": 16, "xla": True}),
        runs(flags={"batch_size": 16}),
        runs(flags={"model": "vgg11"}),
    ]
    assert matched(base, new) == [
        ("lenet 8 xla", "lenet 16 xla"),
        ("lenet 8", "lenet 16"),
        (None, "vgg11 8"),
    ]


@pytest.mark.parametrize(("number", "partner"), [(5, "lenet 16 xla"), (6, None)])
def test_variants_differ_in_at_most_five_flags(runs, number, partner):
    changes = {
        **{"batch_size": 16, "xla": True, "num_intra_threads": 1, "num_inter_threads": 1},
        **{"optimizer": "momentum", "conv_gradients": "library"},
    }
    flags = dict([*changes.items()][:number])
    found = matched([runs()], [runs(flags=flags), runs(flags={"model": "vgg11"})])
    assert ("lenet 8", partner) in found


def test_allowed_flags_do_not_keep_configurations_apart(runs):
    base = [runs(flags={"xla": False, "batch_size": size}) for size in (8, 16)]
    new = [runs(flags={"xla": True, "batch_size": size}) for size in (16, 8)]
    expected = [("lenet 16", "lenet 16 xla"), ("lenet 8", "lenet 8 xla")]
    assert matched(base, new, "xla") == expected
    # Nor do they make one of two configurations of a side.
    both = [runs(flags={"xla": False}), runs(flags={"xla": True})]
    again = [runs(flags={"xla": True}), runs(flags={"xla": False})]
    assert matched(both, again, "xla") == [("lenet 8 xla", "lenet 8 xla"), ("lenet 8", "lenet 8")]


def test_an_early_failure_joins_the_only_configuration_it_can_be_of(runs):
    early = runs(None, flags={"device": "auto"}, placement=None, error=("OSError", "no"))
    first = runs()
    assert grouped(early, first) == [[first, early]]  # as its last run
    assert len(grouped(first, runs(flags={"num_intra_threads": 1}), early)) == 3
    # And with that of the other side: the names of both are those of the whole one.
    other = runs(flags={"xla": True})
    (entry, _) = compare_records([first, other], [early, other]).entries
    assert (entry.base, entry.new, entry.differences) == ((first,), (early,), ())


@pytest.fixture
def experiment(runs):
    """experiment(speeds, seed): records of A and of B, of which each is 10 % slower."""

    def make(speeds=(100.0, 90.0, 80.0, 70.0, 60.0, 50.0, 40.0, 30.0), seed=1):
        sides = ([], [])
        for number, speed in enumerate(speeds, start=1):
            for side, records, value in zip("ab", sides, (speed, speed * 0.9), strict=True):
                records.append(runs(value, ab={"side": side, "seed": seed, "pair": number}))
        return sides

    return make


def judged(base, new):
    found = compare_records(base, new, Criteria(metrics=["throughput"], paired=True))
    ((result,),) = (entry.results for entry in found.entries)
    return found, result


def test_partners_are_found_by_the_number_of_their_pair(experiment):
    a, b = experiment()
    found, result = judged(a[1:], b[:-1])
    assert result.verdict is Verdict.SLOWER
    assert result.judgement.change == pytest.approx(-0.1)
    (note,) = found.notes
    assert "2 runs" in note
    (entry,) = found.entries
    assert [one.run_id for one in entry.base] == [one.run_id for one in a[1:-1]]
    assert [one.run_id for one in entry.new] == [one.run_id for one in b[1:-1]]
    # All of them, whatever their order, leave nothing out.
    found, result = judged(a[::-1], b)
    assert (found.notes, len(result.base)) == ((), 8)


def test_pairs_of_several_experiments_keep_apart(experiment):
    (a1, b1), (a2, b2) = experiment(seed=1), experiment(seed=2)
    found, result = judged([*a1, *a2[1:]], [*b1[1:], *b2])
    assert "2 runs left out" in found.notes[0]
    assert result.base == pytest.approx([value / 0.9 for value in result.new])


def test_runs_of_no_common_experiment_are_paired_by_their_start(experiment, runs):
    a, b = experiment(seed=1)
    for base, new in (
        (a, experiment(seed=2)[1]),  # another experiment
        (a, b[:-1] + runs.of(27.0, ab={"side": "b"})),  # a run of none
        (a + experiment((20.0,))[0], b + experiment((20.0,))[1]),  # two of one pair
    ):
        found, result = judged(base, new)
        assert found.notes == ()
        assert len(result.base) == len(result.new) == len(base)
        assert result.verdict is Verdict.SLOWER


def test_a_run_that_failed_is_not_left_out(experiment, runs):
    a, b = experiment()
    failed = runs(None, error=("Error", "no"), ab={"side": "b", "seed": 1, "pair": 9})
    _, result = judged(a, [*b, failed])
    assert result.verdict is Verdict.FAILED


def process(minute, side="", revision="", pair=None, **origin):
    started = datetime(2026, 1, 2, 3, minute, tzinfo=timezone.utc)
    return MeasuredProcess(
        origin=Origin(side=side, revision=revision, **origin), started=started, pair=pair
    )


def test_processes_of_a_pair_belong_together_in_order_of_their_start():
    late = [process(5, "b", "n", (1, 2)), process(6, "a", "o", (1, 2))]
    early = [process(2, "a", "o", (1, 1)), process(3, "b", "n", (1, 1))]
    alone = [process(0, "a", "o", (1, 3)), process(0, "b", "n"), process(0, "", "n", (1, 1))]
    found = match_complete_pairs([*late, *alone, *early])
    assert found == [(early[0], early[1]), (late[1], late[0])]
    # Two experiments of the same seed.
    again = [process(8, "a", "o", (1, 1)), process(9, "b", "m", (1, 1))]
    assert match_complete_pairs([*early, *again]) == [tuple(early), tuple(again)]


def test_a_process_is_of_a_revision_or_of_a_day():
    assert revision_of(process(1, "a", "1234")) == revision_of(process(2, "b", "1234"))
    assert revision_of(process(1, revision="1234"))[-1] == ""
    assert revision_of(process(1))[-1] == "2026-01-02"
    assert revision_of(process(1, revision="1", dirty=True)) != revision_of(
        process(1, revision="1", dirty=False)
    )


def test_commits_that_a_process_was_compared_with():
    first = process(1, "a", "a" * 40, (1, 1)), process(2, "b", "b" * 40, (1, 1))
    second = process(3, "a", "a" * 40, (2, 1)), process(4, "b", "c" * 40, (2, 1))
    against = compared_commit_lookup([first, second])
    short = Origin(revision="b" * 40).short_revision
    assert [against(one) for one in (*first, *second)] == [
        short,
        Origin(revision="a" * 40).short_revision,
        Origin(revision="c" * 40).short_revision,
        Origin(revision="a" * 40).short_revision,
    ]
    # One without a pair belongs to the first experiment of its commit and side.
    assert against(process(9, "a", "a" * 40)) == short
    assert against(process(9, "b", "a" * 40)) == against(process(9, "a", "d" * 40)) == ""
    assert [compared_commit_text(text) for text in ("1a2b", "")] == ["against 1a2b", "alone"]


def test_sides_and_pairs_of_an_experiment(runs):
    a, b = (runs(ab={"side": side, "seed": 1, "pair": 2}) for side in "ab")
    assert are_sides_of_experiment([a], [b, b])
    for base, new in (([b], [a]), ([a, runs()], [b]), ([a], [b, a]), ([], [b]), ([a], [])):
        assert not are_sides_of_experiment(base, new)
    assert pair_id_of(a) == (1, 2)
    assert pair_id_of(runs()) is None
    for place in ({"seed": "1", "pair": 2}, {"seed": 1, "pair": "2"}, {"seed": 1}):
        assert pair_id_of(runs(ab={"side": "a", **place})) is None
