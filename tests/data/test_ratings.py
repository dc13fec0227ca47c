"""Ratings: what is held back, and the items that are told apart from rated ones.

Tests cnnbench/data/ratings_files.py and cnnbench/data/in_memory.py.
"""

from __future__ import annotations

import numpy as np
import pytest
from data_sets import SMALL, USERS, ratings_table, write_ratings

from cnnbench.data import RATINGS, make_input, ratings_files


@pytest.fixture(scope="module")
def table():
    return ratings_table()


@pytest.fixture
def made(small_set):
    return small_set("ratings")


def arrays(folder, subset):
    with np.load(folder / f"ratings-{subset}.npz") as found:
        return dict(found)


def test_the_last_item_of_each_user_is_held_back(made, table):
    train, validation = arrays(made, "train"), arrays(made, "validation")
    item_ids = np.unique(table[:, 1])
    assert validation["users"].tolist() == list(range(USERS))
    for user in range(USERS):
        own = table[table[:, 0] == 3 * user + 1]
        own = own[np.argsort(own[:, 3])]
        assert item_ids[validation["items"][user]] == own[-1, 1]
        kept = item_ids[train["items"][train["users"] == user]]
        assert sorted(kept) == sorted(own[:-1, 1])
        rated = np.searchsorted(item_ids, own[:, 1])
        assert not set(rated) & set(validation["negatives"][user].tolist())
        assert len(set(validation["negatives"][user].tolist())) == 9
    assert validation["negatives"].shape == (USERS, 9)


def test_both_published_forms_give_the_same_files(made, table, tmp_path, call):
    source = write_ratings(tmp_path / "ratings.csv", table)
    arguments = (source, tmp_path / "csv", "--negatives=9", "--min_ratings=8")
    call("data", "make-ratings", *arguments)
    for subset in ("train", "validation"):
        for name, values in arrays(made, subset).items():
            np.testing.assert_array_equal(values, arrays(tmp_path / "csv", subset)[name])


def test_users_with_few_ratings_are_left_out_and_repeated_ones_count_once(table, tmp_path, call):
    source = write_ratings(tmp_path / "ratings.dat", np.concatenate([table, table[:5]]))
    arguments = (source, tmp_path / "out", "--negatives=1", "--min_ratings=12")
    out = call("data", "make-ratings", *arguments).out
    # Users have 8, 9, ... 13 ratings, and some of the repeated five may lift one over the limit.
    counts = np.unique(np.concatenate([table, table[:5]])[:, 0], return_counts=True)[1]
    left = int((counts >= 12).sum())
    assert len(arrays(tmp_path / "out", "validation")["users"]) == left
    assert f"by {left} users; {USERS - left} users left out" in out
    train = arrays(tmp_path / "out", "train")
    pairs = list(zip(train["users"].tolist(), train["items"].tolist(), strict=True))
    assert len(set(pairs)) == len(pairs)


def test_negatives_are_different_items_up_to_all_that_a_user_has_not_rated(table, tmp_path, call):
    source = write_ratings(tmp_path / "ratings.dat", table)
    items = len(np.unique(table[:, 1]))
    published, counts = np.unique(table[:, 0], return_counts=True)
    left = items - counts.max()
    arguments = ("data", "make-ratings", source, tmp_path / "out", "--min_ratings=8")
    assert call(*arguments, f"--negatives={left + 1}", code=2).err == (
        f"cnnbench: error: --negatives={left + 1}: must be at most {left}: user "
        f"{published[counts.argmax()]} has not rated {left} of the {items} items\n"
    )
    assert not (tmp_path / "out").exists()
    call(*arguments, f"--negatives={left}")
    train, validation = arrays(tmp_path / "out", "train"), arrays(tmp_path / "out", "validation")
    assert validation["negatives"].shape == (USERS, left)
    for user in range(USERS):
        drawn = set(validation["negatives"][user].tolist())
        rated = {*train["items"][train["users"] == user], validation["items"][user]}
        assert len(drawn) == left
        assert drawn <= set(range(items)) - rated
    # The user with most ratings is told all items that there are.
    most = int(counts.argmax())
    rated = {*train["items"][train["users"] == most], validation["items"][most]}
    assert set(validation["negatives"][most].tolist()) == set(range(items)) - rated


def test_every_item_that_was_not_rated_is_drawn_equally_often():
    users = np.repeat(np.arange(4000), 2)
    items = np.tile([1, 4], 4000)
    drawn = ratings_files._draw_negatives(users, items, 8, 3, seed=7)
    found, counts = np.unique(drawn, return_counts=True)
    assert found.tolist() == [0, 2, 3, 5, 6, 7]
    assert np.abs(counts / 12000 - 1 / 6).max() < 0.015  # more than four standard deviations


def test_training_draws_four_others_for_each_rating(made, cpu_devices):
    train = arrays(made, "train")
    rated = set(zip(train["users"].tolist(), train["items"].tolist(), strict=True))
    spec = SMALL["ratings"].spec(made, batch=5)
    with make_input(spec, cpu_devices[:1]) as inputs:
        epochs = []
        for _ in range(2):
            epoch = []
            for _ in range(len(rated)):
                (batch,) = inputs.next()
                values = {**batch.features, "label": batch.labels}
                columns = (values[n].numpy().tolist() for n in ("user", "item", "label"))
                epoch += list(zip(*columns, strict=True))
            epochs.append(epoch)
    for epoch in epochs:
        negatives = [(user, item) for user, item, label in epoch if not label]
        assert len(negatives) == 4 * len(rated)
        assert not set(negatives) & rated
        assert max(item for _, item in negatives) == train["items"].max()
        users = [user for user, _ in negatives]
        assert sorted(users) == sorted(4 * [user for user, _ in rated])


def test_evaluation_goes_through_the_candidates_of_each_user(made, cpu_devices):
    validation = arrays(made, "validation")
    with make_input(SMALL["ratings"].spec(made, "validation", 1, 10), cpu_devices[:1]) as inputs:
        for user in range(USERS):
            (batch,) = inputs.next()
            assert batch.features["user"].numpy().tolist() == [user] * 10
            expected = [validation["items"][user], *validation["negatives"][user]]
            assert batch.features["item"].numpy().tolist() == expected
            assert batch.labels.numpy().tolist() == [1] + [0] * 9


TRAIN = {"users": [0, 0, 1], "items": [0, 1, 2]}
VALIDATION = {"users": [0, 1], "items": [2, 0], "negatives": [[3, 4], [1, 3]]}


@pytest.mark.parametrize(
    ("subset", "change", "defect"),
    [
        ("train", {"users": [0, 0, 138_493]}, "record 2: user 138493 is not in [0, 138493)"),
        ("train", {"items": [0, 0, 2]}, "duplicate pair of user 0 and item 0"),
        (
            *("validation", {"negatives": [[3, 4], [2, 3]]}),
            "record 1: negative 2 of user 1 is in the training file too",
        ),
        (
            *("validation", {"items": [1, 0]}),
            "record 0: item 1 of user 0 is in the training file too",
        ),
        (
            *("validation", {"negatives": [[3, 2], [1, 3]]}),
            "record 0: item 2 is also one of its unrated items (negatives)",
        ),
    ],
)
def test_defects_are_named_with_file_and_record(subset, change, defect, tmp_path):
    content = {"train": TRAIN, "validation": VALIDATION}
    content[subset] = {**content[subset], **change}
    for name, values in content.items():
        np.savez(tmp_path / f"ratings-{name}.npz", **values)
    subsets = RATINGS.files_by_subset(str(tmp_path)).values()
    found = [one for files in subsets for one in RATINGS.check(files, 2).defects]
    assert found == [f"{tmp_path}/ratings-{subset}.npz: {defect}"]


def test_a_damaged_file_is_named(made, tmp_path):
    path = tmp_path / "ratings-train.npz"
    path.write_bytes((made / path.name).read_bytes()[:-40])
    (defect,) = RATINGS.check([path], 2).defects
    assert defect.startswith(f"{path}: is not a NumPy file (.npz): ")
