"""Names of data sets, and what their declarations must contain.

Tests cnnbench/data/open.py.
"""

import re
from pathlib import Path

import pytest

from cnnbench.data import (
    CIFAR10,
    COCO,
    LIBRISPEECH,
    RATINGS,
    Dataset,
    InputSpec,
    dataset,
    find_dataset,
    ratings_files,
)
from cnnbench.data import open as built_in
from cnnbench.data.dataset import InputSource
from cnnbench.errors import DataError, FlagError, UsageError
from cnnbench.flags.params import SPECS
from cnnbench.models import Draw, Element, Model, get_model, registry


@pytest.mark.parametrize(
    ("name", "folder", "model", "found"),
    [
        ("cifar10", "/data/imagenet", None, "cifar10"),
        (None, "/data/imagenet/2012", None, "imagenet"),
        (None, "/data/cifar10", None, "cifar10"),
        (None, None, None, "imagenet"),
        (None, None, "resnet20", "cifar10"),
        (None, None, "ncf", "ratings"),
        (None, None, "ssd300", "coco"),
        (None, None, "nasnet", "imagenet"),
    ],
)
def test_a_name_wins_over_a_word_of_the_path_and_that_over_the_model(name, folder, model, found):
    assert find_dataset(name, folder, model).name == found


def test_a_model_of_several_data_sets_but_imagenet_implies_none(own_registry):
    for name in ("cifar10", "coco"):
        registry.register_model("small", name, Model)
    with pytest.raises(FlagError, match="small: is a model for cifar10 and coco; give --data_name"):
        find_dataset(None, None, "small")
    assert find_dataset("coco", None, "small").name == "coco"
    assert find_dataset(None, "/data/cifar10", "small") is CIFAR10


def test_unknown_is_a_flag_error_that_lists_what_is_known():
    with pytest.raises(FlagError, match="--data_name=mnist: must be one of imagenet, cifar10"):
        find_dataset("mnist", None)


def test_spec_takes_flags_by_name_but_not_other_attributes():
    class Flags:
        resize_method = "area"
        datasets_num_private_threads = 3
        subset = "validation"
        seed = 99

    spec = InputSpec.from_flags(
        Flags(), dataset=CIFAR10, subset="train", batch_per_device=2, num_devices=3, image_size=32
    )
    assert (spec.resize_method, spec.datasets_num_private_threads) == ("area", 3)
    assert (spec.subset, spec.seed) == ("train", 1234)
    assert (spec.num_classes, spec.process_batch_size) == (11, 6)


def test_what_a_spec_is_not_told_follows_from_the_data_set():
    def spec(**fields):
        return InputSpec(
            **{"dataset": CIFAR10, "subset": "train", "batch_per_device": 2, "num_devices": 3}
            | {"image_size": 32, **fields}
        )

    own = (Element("own", (4,), "label"),)
    image = next(one for one in spec().examples if one.name == "image")
    assert (image.shape, len(spec().examples)) == ((32, 32, 3), len(CIFAR10.elements))
    assert (spec().num_classes, spec().elements) == (11, spec().examples)
    other = spec(num_classes=5, examples=own)
    assert (other.num_classes, other.examples, other.elements) == (5, own, own)
    both = spec(elements=own)
    assert (both.examples, both.elements) == (spec().examples, own)
    assert (spec().training, spec(subset="validation").training) == (True, False)
    settled = {"resize_method": "bilinear", "distortions": False, "ml_perf": False}
    asked = {"resize_method": "area", "distortions": True, "ml_perf": True}
    for name, expected in (("official_models_imagenet", settled), ("default", asked)):
        made = spec(input_preprocessor=name, **asked)
        assert {name: getattr(made, name) for name in asked} == expected


def test_the_help_and_the_page_name_every_data_set():
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    own = [one.name for one in vars(built_in).values() if isinstance(one, Dataset)]
    assert len(own) >= 5
    for name in own:
        assert name in SPECS["data_name"].help, "name it in the help of --data_name"
        assert f"\n| {name} |" in page, "add a row to docs/data.md"


# Classes with that of the background or of nothing, published examples, and what a pipeline can.
FACTS = {
    "imagenet": (1001, 1_281_167, 50_000, True, True),
    "cifar10": (11, 50_000, 10_000, False, True),
    "ratings": (2, 19_861_770 * 5, 138_493 * 100, False, False),
    "coco": (81, 118_287, 4_952, True, False),
    "librispeech": (29, 281_241, 2_620, True, False),
}


@pytest.mark.parametrize("name", FACTS)
def test_built_in_data_sets_are_as_they_were_published(name):
    found = find_dataset(name, None)
    sizes = found.num_examples("train"), found.num_examples("validation")
    facts = (found.num_classes, *sizes, found.skips_bad_records, found.augments)
    assert facts == FACTS[name]


def test_synthetic_examples_have_the_sizes_of_published_ones():
    """Users and items of MovieLens 20M, boxes of SSD300, and frames and letters of DeepSpeech 2."""
    ratings = {one.name: one.draw for one in RATINGS.elements}
    network = get_model("ncf", "ratings")
    assert ratings == {
        "user": Draw.integers(0, ratings_files.USERS),
        "item": Draw.integers(0, ratings_files.ITEMS),
        "label": Draw.integers(0, "num_classes"),
    }
    assert (network.users, network.items) == (ratings_files.USERS, ratings_files.ITEMS)
    assert (ratings_files.USERS, ratings_files.ITEMS) == (138_493, 26_744)
    coco = {one.name: (one.shape, one.draw, one.rows) for one in COCO.elements[1:]}
    assert coco == {
        "num_boxes": ((), Draw.integers(1, 20), None),
        "boxes": ((200, 4), Draw.boxes(), "num_boxes"),
        "classes": ((200,), Draw.integers(1, "num_classes"), "num_boxes"),
        "is_crowd": ((200,), Draw.integers(0, 1), "num_boxes"),
        "source_id": ((), Draw.integers(0, 1_000_000), None),
    }
    speech = {one.name: (one.shape, one.draw, one.rows) for one in LIBRISPEECH.elements}
    assert speech == {
        "spectrogram": (("max_frames", 161), Draw.normal(), "num_frames"),
        "num_frames": ((), Draw.integers("min_frames", "max_frames"), None),
        "transcript": (("max_letters",), Draw.integers(0, 28), "transcript_length"),
        "transcript_length": ((), Draw.integers(1, "max_letters"), None),
    }


def rows(**fields):
    """A data set whose declaration a test chooses."""
    given = {"name": "rows", "num_classes": 3, "files": "*", "check": lambda *of: None}
    given |= {"find": lambda *of: [], "count": lambda *of: 3, "open": lambda spec: None}
    return Dataset(**{**given, "examples": {"train": 1, "validation": 1}, **fields})


def test_a_declaration_counts_at_least_one_example_of_each_subset():
    assert rows().num_examples("validation") == 1
    for examples in ({"train": 1}, {"train": 0, "validation": 1}, {}):
        with pytest.raises(UsageError, match="at least 1, not 0"):
            rows(examples=examples)


@pytest.mark.parametrize(
    ("count", "missing", "unread", "notices"),
    [(1, 0, 0, 0), (1, 2, 0, 1), (1, 0, 3, 1), (0, 0, 0, None)],
)
def test_files_are_counted_and_what_is_wrong_with_them_is_told(
    tmp_path, count, missing, unread, notices
):
    path = tmp_path / "rows"
    path.touch()
    dataset = rows(
        find=lambda folder, subset: [str(path)],
        count=lambda files, subset: count * len(files),
        missing=lambda files: [f"gone{number}" for number in range(missing)],
        left_out=lambda files: [Path(f"beside{number}") for number in range(unread)],
    )
    if notices is None:
        with pytest.raises(DataError):
            dataset.num_examples("train", str(tmp_path))
        return
    assert dataset.num_examples("train", str(tmp_path)) == 1
    found = dataset.file_notices("train", str(tmp_path))
    assert len(found) == notices
    if missing:
        assert re.findall(r"\d+", found[0]) == ["2", "3", "0"]
        assert "gone0" in found[0]
    if unread:
        assert re.findall(r"\d+", found[0]) == ["3", "0"]
        assert "beside0" in found[0]


def mixing(**fields):
    given = {"dataset": CIFAR10, "subset": "train", "batch_per_device": 2, "num_devices": 1}
    return InputSpec(**{**given, "image_size": 8, "data_dir": "somewhere", **fields})


@pytest.mark.parametrize(
    ("fields", "mixes"),
    [
        ({}, False),
        ({"mixup_alpha": 0.5}, True),
        ({"cutmix_alpha": 0.5}, True),
        ({"cutmix_alpha": 0.5, "subset": "validation"}, False),
        ({"cutmix_alpha": 0.5, "data_dir": None}, False),
    ],
)
def test_mixed_images_come_in_pairs_with_two_more_labels(fields, mixes):
    spec = mixing(**fields)
    assert (spec.mixes_images, spec.required_batch_multiple) == (mixes, 2 if mixes else 1)
    own = [one.name for one in spec.elements]
    names = [*own, "other_label", "own_share"] if mixes else own
    assert [one.name for one in spec.delivered_elements] == names


@pytest.mark.parametrize(
    ("role", "dtype", "expected"),
    [
        ("feature", "float32", "bfloat16"),
        ("feature", "int64", "int64"),
        ("label", "float32", "float32"),
    ],
)
def test_only_real_features_have_the_precision_of_the_run(role, dtype, expected):
    assert mixing(dtype="bfloat16").dtype_of(Element("one", (), role, dtype)) == expected


class Plain(InputSource):
    """An input that tells nothing of its own."""

    def next(self):
        return ()


@pytest.mark.parametrize(
    ("examples", "shards", "batch", "towers", "steps"),
    [(12, 1, 2, 1, 6), (13, 1, 2, 1, 7), (13, 2, 2, 1, 4), (13, 2, 2, 2, 2), (17, 2, 2, 2, 3)],
)
def test_steps_of_an_epoch_cover_the_examples_of_a_worker(examples, shards, batch, towers, steps):
    fields = {"num_shards": shards, "batch_per_device": batch, "num_devices": towers}
    assert Plain(mixing(**fields), ("CPU:0",), examples).steps_per_epoch == steps


def test_an_input_without_files_has_nothing_to_count():
    source = Plain(mixing(), ["CPU:0"], 7)
    assert not source.synthetic
    assert (source.devices, source.examples_per_epoch) == (("CPU:0",), 7)
    assert (source.batches, source.wait_seconds) == (0, 0.0)
    assert (source.stages(), source.seconds_waiting_by_shard()) == ([], {})
    assert (source.skipped().count, source.skipped_records_by_shard(3)) == (0, [])
    assert source.of_workers == source.sources_to_time() == (source,)
    assert source.resume(12, 4)
    assert source.get_tower_batch(1, ["first", "second"]) == "second"


def test_inputs_are_closed_within_one_time_limit(monkeypatch):
    now, limits = [100.0], []

    class Slow(Plain):
        def close(self, timeout_seconds=2.0):
            limits.append(timeout_seconds)
            now[0] += 1.5

    monkeypatch.setattr(dataset.time, "monotonic", lambda: now[0])
    dataset.close_inputs([Slow(mixing(), (), 1) for _ in range(3)], 2.0)
    assert limits == [2.0, 0.5, 0.0]
