"""Ratings: made from the published files, read, checked and trained on."""

from __future__ import annotations

import numpy as np
import pytest

from cnnbench.cli import main
from cnnbench.data import RATINGS, InputSpec, find_dataset, make_input, make_ratings
from cnnbench.data.check import check
from cnnbench.errors import DataError, FlagError

USERS, ITEMS = 12, 60

MODEL = """
from cnnbench.models import Draw, Element, LearningRateSpec, Model, register_model

class Factors(Model):
    name, dataset, batch_size = "factors", "ratings", 20
    elements = (
        Element("user", (), "feature", "int64", Draw.integers(0, 138493)),
        Element("item", (), "feature", "int64", Draw.integers(0, 26744)),
        Element("label", (), "label", "int64", Draw.integers(0, 2)),
    )
    metric_names = ("top_1",)
    learning_rate = LearningRateSpec(0.5)

    def build(self, net, features):
        user = net.embedding(features["user"], 138493, 2)
        item = net.embedding(features["item"], 26744, 2)
        return net.logits(net.concat([user, item]))

    def metrics(self, outputs, labels):
        import tensorflow as tf
        return {"top_1": tf.cast(tf.argmax(outputs, axis=1) == labels, tf.float32)}

register_model("factors", "ratings", Factors)
"""


@pytest.fixture
def table():
    """(user, item, rating, time) with numbers as published: from 1, with gaps, in no order."""
    rng = np.random.default_rng(0)
    rows = []
    for user in range(USERS):
        rated = rng.choice(ITEMS, 8 + user, replace=False)
        times = rng.permutation(len(rated)) + 1000
        rows += [
            (3 * user + 1, 7 * item + 2, 4, when) for item, when in zip(rated, times, strict=True)
        ]
    rows = np.array(rows)
    return rows[rng.permutation(len(rows))]


def write(path, table):
    dat = path.suffix == ".dat"
    lines = [] if dat else ["userId,movieId,rating,timestamp"]
    lines += [("::" if dat else ",").join(map(str, row)) for row in table.tolist()]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def made(table, tmp_path):
    write(tmp_path / "ratings.dat", table)
    arguments = [str(tmp_path), str(tmp_path / "out"), "--negatives=9", "--min_ratings=8"]
    assert main(["data", "make-ratings", *arguments]) == 0
    return tmp_path / "out"


def arrays(folder, subset):
    with np.load(folder / f"ratings-{subset}.npz") as found:
        return dict(found)


def spec(folder, subset, batch=5, **fields):
    return InputSpec(
        dataset=RATINGS,
        data_dir=str(folder),
        subset=subset,
        batch_per_device=batch,
        num_devices=1,
        **fields,
    )


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


def test_both_published_forms_give_the_same_files(made, table, tmp_path):
    source = write(tmp_path / "ratings.csv", table)
    arguments = [str(source), str(tmp_path / "csv"), "--negatives=9", "--min_ratings=8"]
    assert main(["data", "make-ratings", *arguments]) == 0
    for subset in ("train", "validation"):
        for name, values in arrays(made, subset).items():
            np.testing.assert_array_equal(values, arrays(tmp_path / "csv", subset)[name])


def test_users_with_few_ratings_are_left_out_and_repeated_ones_count_once(table, tmp_path, capsys):
    source = write(tmp_path / "ratings.dat", np.concatenate([table, table[:5]]))
    arguments = [str(source), str(tmp_path / "out"), "--negatives=1", "--min_ratings=12"]
    assert main(["data", "make-ratings", *arguments]) == 0
    # Users have 8, 9, ... 19 ratings, and some of the repeated five may lift one over the limit.
    counts = np.unique(np.concatenate([table, table[:5]])[:, 0], return_counts=True)[1]
    left = int((counts >= 12).sum())
    assert len(arrays(tmp_path / "out", "validation")["users"]) == left
    assert f"by {left} users; {USERS - left} users left out" in capsys.readouterr().out
    train = arrays(tmp_path / "out", "train")
    pairs = list(zip(train["users"].tolist(), train["items"].tolist(), strict=True))
    assert len(set(pairs)) == len(pairs)


def test_negatives_are_different_items_up_to_all_that_a_user_has_not_rated(table, tmp_path, capsys):
    source = write(tmp_path / "ratings.dat", table)
    items = len(np.unique(table[:, 1]))
    published, counts = np.unique(table[:, 0], return_counts=True)
    left = items - counts.max()
    arguments = ["data", "make-ratings", str(source), str(tmp_path / "out"), "--min_ratings=8"]
    assert main([*arguments, f"--negatives={left + 1}"]) == 2
    assert capsys.readouterr().err == (
        f"cnnbench: error: --negatives={left + 1}: must be at most {left}: user "
        f"{published[counts.argmax()]} has not rated {left} of the {items} items\n"
    )
    assert not (tmp_path / "out").exists()
    assert main([*arguments, f"--negatives={left}"]) == 0
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
    drawn = make_ratings._negatives(users, items, 8, 3, seed=7)
    found, counts = np.unique(drawn, return_counts=True)
    assert found.tolist() == [0, 2, 3, 5, 6, 7]
    assert np.abs(counts / 12000 - 1 / 6).max() < 0.015  # more than four standard deviations


def test_the_data_set_is_told_by_its_files_and_counted(made, table):
    assert find_dataset(None, str(made)) is RATINGS
    assert RATINGS.num_examples("train", str(made)) == 5 * (len(table) - USERS)
    assert RATINGS.num_examples("validation", str(made)) == USERS * 10


def test_training_has_every_rating_once_an_epoch_and_four_others_for_each(made, cpu_devices):
    train = arrays(made, "train")
    rated = set(zip(train["users"].tolist(), train["items"].tolist(), strict=True))
    with make_input(spec(made, "train"), cpu_devices[:1]) as inputs:
        assert inputs.examples_per_epoch == 5 * len(rated)
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
        positives = [(user, item) for user, item, label in epoch if label]
        assert sorted(positives) == sorted(rated)
        negatives = [(user, item) for user, item, label in epoch if not label]
        assert len(negatives) == 4 * len(rated)
        assert not set(negatives) & rated
        users = [user for user, _ in negatives]
        assert sorted(users) == sorted(4 * [user for user, _ in rated])
    assert epochs[0] != epochs[1]


def test_evaluation_goes_through_the_candidates_of_each_user(made, cpu_devices):
    validation = arrays(made, "validation")
    with make_input(spec(made, "validation", 10), cpu_devices[:1]) as inputs:
        assert inputs.steps_per_epoch == USERS
        for user in range(USERS):
            (batch,) = inputs.next()
            assert batch.features["user"].numpy().tolist() == [user] * 10
            expected = [validation["items"][user], *validation["negatives"][user]]
            assert batch.features["item"].numpy().tolist() == expected
            assert batch.labels.numpy().tolist() == [1] + [0] * 9


def test_a_model_trains_from_the_files_in_two_modes(made, tmp_path, quick_start, capsys):
    plugin = tmp_path / "factors.py"
    plugin.write_text(MODEL)
    for mode in ("parameter_server", "replicated"):
        flags = [f"--model_plugin={plugin}", "--model=factors", f"--data_dir={made}"]
        flags += ["--device=cpu", "--num_gpus=2", f"--variable_update={mode}", "--num_batches=3"]
        assert main([*flags, "--num_warmup_batches=0", f"--train_dir={tmp_path / mode}"]) == 0
        assert "Dataset:     ratings\n" in capsys.readouterr().out


def test_a_sound_set_is_described(made, capsys):
    assert main(["data", "check", str(made)]) == 0
    out = capsys.readouterr().out
    assert f"users: {USERS} different up to {USERS - 1}" in out
    assert "negatives: 9 for each user" in out


def change(folder, subset, **changes):
    values = arrays(folder, subset)
    for name, edit in changes.items():
        edit(values[name])
    np.savez(folder / f"ratings-{subset}.npz", **values)


def test_defects_are_named_with_file_and_record(made):
    def put(row, value):
        return lambda values: values.__setitem__(row, value)

    def defects():
        return [d for report in check(str(made), RATINGS, 2) for d in report.found.defects]

    train, validation = (made / f"ratings-{s}.npz" for s in ("train", "validation"))
    before = {path: path.read_bytes() for path in (train, validation)}
    change(made, "train", users=put(3, 138_493))
    assert defects() == [f"{train}: record 3: user 138493 is not in [0, 138493)"]
    train.write_bytes(before[train])
    known = arrays(made, "train")
    change(made, "validation", negatives=put((2, 4), known["items"][known["users"] == 2][0]))
    (defect,) = defects()
    assert defect.startswith(f"{validation}: record 2: negative ")
    assert defect.endswith(" of user 2 is in the training file too")
    validation.write_bytes(before[validation])
    own = arrays(made, "validation")["items"][5]
    change(made, "validation", negatives=put((5, 0), own))
    assert defects() == [f"{validation}: record 5: item {own} is among its own negatives"]
    validation.write_bytes(before[validation][:-40])
    (defect,) = defects()
    assert defect.startswith(f"{validation}: is no file of arrays: ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"users": [1]}, "array items is missing"),
        ({"users": [1], "items": [1.5]}, "array items must hold integers in 1 dimensions"),
        ({"users": [1], "items": [[1]]}, "must hold integers in 1 dimensions, but holds int64"),
        ({"users": [1], "items": [1, 2]}, "1 users, but 2 rows of items"),
        ({"users": np.zeros(0, int), "items": np.zeros(0, int)}, "holds no records"),
        ({"users": [1], "items": [-1]}, "record 0: item -1 is not in [0, 26744)"),
    ],
)
def test_training_refuses_what_the_check_refuses(tmp_path, cpu_devices, content, message):
    path = tmp_path / "ratings-train.npz"
    np.savez(path, **content)
    (defect,) = check(str(tmp_path), RATINGS, 2)[0].found.defects
    assert defect.startswith(f"{path}: ")
    assert message in defect
    with pytest.raises(DataError) as caught:
        make_input(spec(tmp_path, "train"), cpu_devices[:1])
    assert str(caught.value) == defect


@pytest.mark.parametrize(
    ("text", "status", "message"),
    [
        ("1::2::3::4\n1::x::3::4\n", 4, "ratings.dat: line 2: item x is no number"),
        ("1::2::3::4\n1::2\n", 4, "ratings.dat: line 2: rating nan is no number"),
        ("", 4, "ratings.dat: holds no ratings"),
        ("1::2::3::4\n", 2, "--min_ratings=20: no user of "),
    ],
)
def test_sources_that_cannot_be_used(tmp_path, capsys, text, status, message):
    (tmp_path / "ratings.dat").write_text(text)
    assert main(["data", "make-ratings", str(tmp_path), str(tmp_path / "out")]) == status
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_nothing_is_overwritten_and_nothing_missing_is_made_up(made, tmp_path, capsys):
    arguments = ["data", "make-ratings", str(tmp_path), str(made), "--min_ratings=8"]
    arguments += ["--negatives=9"]
    assert main(arguments) == 2
    assert "holds ratings-train.npz already" in capsys.readouterr().err
    assert main(["data", "make-ratings", str(tmp_path / "no"), str(tmp_path / "x")]) == 2
    assert "is neither a file nor a folder with ratings.dat or" in capsys.readouterr().err
    (made / "ratings-validation.npz").unlink()
    with pytest.raises(FlagError, match=r"holds no ratings-validation\.npz"):
        RATINGS.num_examples("validation", str(made))
