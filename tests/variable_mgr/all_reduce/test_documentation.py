"""docs/all_reduce.md and its example of a new algorithm."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from towers import ByTower

from cnnbench.errors import FlagError
from cnnbench.variable_mgr import all_reduce
from cnnbench.variable_mgr.all_reduce import algorithms
from cnnbench.variable_mgr.all_reduce.algorithms.tree import parent_place
from cnnbench.variable_mgr.all_reduce.reducer import AllReducer

DOCS = Path(__file__).parents[3] / "docs"
TEXT = (DOCS / "all_reduce.md").read_text(encoding="utf-8")


@pytest.fixture
def chain(registered, tmp_path, monkeypatch) -> None:
    """The example as a file of the package."""
    assert "(examples/chain.py)" in TEXT
    shutil.copy(DOCS / "examples" / "chain.py", tmp_path)
    monkeypatch.setattr(algorithms, "__path__", [*algorithms.__path__, str(tmp_path)])


@pytest.mark.usefixtures("chain")
@pytest.mark.parametrize("spec", ["chain:1K:xring", "chain/copy"])
def test_the_new_file_is_all_that_it_takes(spec, make_context):
    context = make_context(5)
    groups = [context.devices[:3], context.devices[3:]]
    parsed = all_reduce.parse_all_reduce_spec(spec, all_reduce.names())
    values = np.random.default_rng(0).integers(-99, 99, size=(5, 1000)).astype(np.float32)
    towers = [[tf.constant(value), tf.constant(value[:7])] for value in values]
    sums = tf.function(ByTower(AllReducer(parsed, context, groups)), autograph=False)(towers)
    for large, small in sums:
        np.testing.assert_array_equal(large, values.sum(0))
        np.testing.assert_array_equal(small, values.sum(0)[:7])


@pytest.mark.usefixtures("chain")
def test_what_it_refuses_is_told_with_its_place_in_the_spec(make_context):
    parsed = all_reduce.parse_all_reduce_spec("copy:1K:chain#2", all_reduce.names())
    with pytest.raises(FlagError, match="character 9, 'chain#2': chain takes no shards"):
        AllReducer(parsed, make_context(2), [])


def test_every_algorithm_has_its_row():
    rows = re.findall(r"^\| (`.*?) \| ", TEXT, re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`(\w+)(?:#k)?`", row)}
    missing = {*all_reduce.names()} - listed
    assert not missing, f"add rows to docs/all_reduce.md: {missing}"
    assert listed <= {*all_reduce.names()}


GPUS = tuple(f"/job:localhost/replica:0/task:0/device:GPU:{number}" for number in range(4))
LETTERS = dict(zip(GPUS, "abcd", strict=True))


def test_the_diagram_of_a_ring_shows_the_way_of_a_chunk():
    first, second = re.findall(r"^(?:first|second) lap +((?:[a-d] -> )+[a-d]) ", TEXT, re.MULTILINE)
    route = all_reduce.create("xring", all_reduce.ReduceContext(devices=GPUS)).chunk_route(0)
    drawn = [*first.split(" -> "), *second.split(" -> ")[1:]]
    assert [LETTERS[device] for device in route] == drawn


def test_the_diagram_of_trees_shows_both_trees():
    (diagram,) = re.findall(r"^first half    .*?(?=^```)", TEXT, re.DOTALL | re.MULTILINE)
    letters = re.findall(r"\b[a-d]\b", diagram)
    drawn = [letters[0::2][:2] + letters[4:6], letters[1::2][:2] + letters[6:8]]
    tree = all_reduce.create("tree", all_reduce.ReduceContext(devices=GPUS))
    root, inner, *leaves = 4, 2, 1, 3
    assert [parent_place(place, 4) for place in (inner, *leaves)] == [root, inner, inner]
    places = (root, inner, *leaves)
    for half, shown in enumerate(drawn):
        assert [LETTERS[tree.device_at_place(half, place)] for place in places] == shown
