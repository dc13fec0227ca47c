"""The search by itself, on histories that are lists, and answers from verdicts."""

from __future__ import annotations

import math
import random
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest

from cnnbench.campaigns.bisect.answers import (
    BAD,
    GOOD,
    SKIP,
    BisectionStep,
    bisect_answer,
    pairs_for_answers,
    policy_for_middle_commit,
)
from cnnbench.campaigns.bisect.history import GitHistory, good_and_bad_hashes
from cnnbench.campaigns.bisect.search import CommitSearch
from cnnbench.campaigns.bisect.texts import bisection_text
from cnnbench.errors import UsageError
from cnnbench.judge.compare import Judgement, Policy, Verdict


class Line:
    """A history without merges: commits are the texts of numbers."""

    def suspects(self, good, bad):
        left = [str(n) for n in range(max(map(int, good)) + 1, int(bad) + 1)]
        place = {commit: index + 1 for index, commit in enumerate(left)}
        return sorted(left, key=lambda one: -min(place[one], len(left) - place[one]))


def step(commit, answer):
    judgement = Judgement(verdict=Verdict.NOT_MEASURED, reason="")
    return BisectionStep(commit=commit, answer=answer, judgement=judgement)


def found(commits, culprit, skipped=()):
    """The suspects at the end, and how many commits were tried."""
    search, tries = CommitSearch(Line(), "0", str(commits)), 0
    while (commit := search.next_commit()) is not None:
        tries += 1
        answer = BAD if int(commit) >= culprit else GOOD
        search.add_answer(step(commit, SKIP if int(commit) in skipped else answer))
    return set(search.suspects), tries


@pytest.mark.parametrize("commits", [1, 2, 3, 30, 31, 1000])
def test_it_takes_as_many_steps_as_a_binary_search(commits):
    for culprit in {1, 2, commits // 2 + 1, commits}:
        if culprit <= commits:
            suspects, tries = found(commits, culprit)
            assert suspects == {str(culprit)}
            assert tries <= math.ceil(math.log2(commits))


def test_the_number_of_steps_is_told_before():
    assert [CommitSearch(Line(), "0", str(n)).steps_left for n in (1, 2, 3, 4, 30, 32, 33)] == [
        *(0, 1, 2, 2, 5, 5, 6)
    ]


def test_whatever_is_skipped_the_culprit_is_among_the_suspects():
    draw = random.Random(1)
    for _ in range(300):
        commits = draw.randint(1, 30)
        culprit = draw.randint(1, commits)
        skipped = {n for n in range(1, commits) if draw.random() < draw.choice([0, 0.1, 0.9])}
        suspects, tries = found(commits, culprit, skipped)
        assert str(culprit) in suspects
        assert tries < commits
        # All but the last are such that nothing more can be found out about them.
        last = max(map(int, suspects))
        assert {int(one) for one in suspects} - {last} <= skipped


def test_a_stretch_that_does_not_build_is_left_in_a_few_steps():
    suspects, tries = found(1000, 900, skipped=set(range(400, 600)))
    assert suspects == {"900"}
    assert tries <= 10 + 9


@pytest.mark.parametrize(
    ("verdict", "about_speed", "about_work"),
    [
        (Verdict.SLOWER, BAD, GOOD),
        (Verdict.FASTER, GOOD, GOOD),
        (Verdict.SAME, GOOD, GOOD),
        (Verdict.NOT_SLOWER, GOOD, GOOD),
        (Verdict.INCONCLUSIVE, SKIP, GOOD),
        (Verdict.CHANGED_WORK, SKIP, BAD),
        (Verdict.FAILED, SKIP, SKIP),
        (Verdict.NOT_COMPARABLE, SKIP, SKIP),
    ],
)
def test_answers_follow_from_verdicts(verdict, about_speed, about_work):
    assert bisect_answer(verdict, about_work=False) == about_speed
    assert bisect_answer(verdict, about_work=True) == about_work


def test_between_the_floor_is_half_of_the_change_and_no_less_than_the_usual_one():
    for change, threshold in ((-0.36, 0.25), (0.5625, 0.25), (-0.04, 0.03), (None, 0.03)):
        bad = step("bad", BAD)
        found = replace(bad, judgement=replace(bad.judgement, change=change))
        policy = policy_for_middle_commit(found, Policy())
        assert policy.threshold == pytest.approx(threshold)
        assert policy.replace(threshold=0.03) == Policy()


@pytest.mark.parametrize(
    ("needed", "pairs"),
    [([40], 40), ([40, 60], 60), ([200], 200), ([60, 201], 0), ([60, None], 0)],
)
def test_a_new_search_has_the_pairs_that_the_sentences_of_undecided_commits_name(needed, pairs):
    open = step("c", SKIP)
    for name in ("needed", "at_least"):
        steps = [
            replace(open, judgement=replace(open.judgement, **{name: number})) for number in needed
        ]
        assert pairs_for_answers(steps) == pairs


def test_every_commit_of_a_real_history_is_found(nets, git):
    folder, made = nets
    names = {commit: name for name, commit in made.items()}
    contents = {
        commit: {*git(folder, "rev-list", commit).split()} for commit in made.values()
    }  # of a commit: itself and its ancestors
    suspects = GitHistory(folder).suspects([made["m1"]], made["m8"])
    assert sorted(names[one] for one in suspects) == sorted(
        [
            "m2",
            "m3",
            "m4",
            "b1",
            "b2",
            "merge",
            "m5",
            "n1",
            "n2",
            "squash",
            "m6",
            "revert",
            "m7",
            "m8",
        ]
    )
    for culprit in suspects:
        search = CommitSearch(GitHistory(folder), made["m1"], made["m8"])
        while (commit := search.next_commit()) is not None:
            search.add_answer(step(commit, BAD if culprit in contents[commit] else GOOD))
        assert [names[one] for one in search.suspects] == [names[culprit]]


def test_files_with_the_names_of_commits_change_nothing(nets, tmp_path):
    folder, made = nets
    shutil.copytree(folder, tmp_path / "nets")
    for commit in made.values():
        (tmp_path / "nets" / commit).touch()
    before, after = GitHistory(folder), GitHistory(tmp_path / "nets")
    good, bad = made["m1"], made["m8"]
    assert good_and_bad_hashes(good, bad, tmp_path / "nets") == (good, bad)
    suspects = before.suspects([good], bad)
    assert after.suspects([good], bad) == suspects
    order = before.order_by_ancestry(suspects, good, bad)
    assert after.order_by_ancestry(suspects, good, bad) == order
    for commit in suspects:
        assert after.format_commit(commit) == before.format_commit(commit)
        assert after.parent(commit) == before.parent(commit)


def test_ends_that_were_replaced_are_said_as_in_a_history(nets):
    folder, made = nets
    short = {name: commit[:12] for name, commit in made.items()}
    for good in ("m1", "b2"):
        assert good_and_bad_hashes(made[good], "main", folder) == (made[good], made["m8"])
    aside = "it is not an ancestor of BAD; "
    replaced = "{} was replaced, as by a {}: it is now {}; "
    both = "give their common ancestor: {}"
    for good, bad, told in (
        ("m8", "m1", "BAD is an ancestor of GOOD; swap GOOD and BAD"),
        ("o1", "m1", "BAD is an ancestor of GOOD; swap GOOD and BAD"),
        ("m4", "b2", aside + both.format(short["m3"])),
        ("s1", "m8", aside + both.format(short["n2"])),
        (
            *("r2", "m8"),
            aside
            + replaced.format(short["r2"], "rebase", short["n2"])
            + both.format(short["merge"]),
        ),
        (
            *("m8", "s2"),
            aside
            + replaced.format(short["s2"], "squash", short["squash"])
            + both.format(short["n2"]),
        ),
    ):
        with pytest.raises(UsageError) as refused:
            good_and_bad_hashes(made[good], made[bad], folder)
        assert str(refused.value) == f"GOOD {made[good]!r}: {told}"


@pytest.mark.parametrize(
    ("culprit", "first_parent", "told"),
    [
        ("m4", False, None),
        ("revert", False, "it reverts {m6}"),
        ("merge", False, "a merge of {m4} and {b2}; each of these is good alone"),
        (
            "merge",
            True,
            "a merge of {m4} and {b2}; --first_parent did not search the merged commits",
        ),
    ],
)
def test_a_found_merge_or_revert_is_called_so(nets, culprit, first_parent, told):
    folder, made = nets
    bad = step(made[culprit], BAD)
    setting = SimpleNamespace(
        history=GitHistory(folder, first_parent),
        side=SimpleNamespace(flags=(), python="/env/python"),
    )
    search = SimpleNamespace(
        setting=setting, steps={bad.commit: bad}, suspects=(bad.commit,), bad_step=bad
    )
    text = bisection_text(search)
    assert f"{made[culprit]} is the first bad commit" in text
    assert text.count("--a_python=/env/python --b_python=/env/python") == len(("ab", "explain"))
    if told is None:
        assert "merge of" not in text
        assert "reverts" not in text
    else:
        assert told.format(**{name: commit[:12] for name, commit in made.items()}) in text
