"""The order in which --shuffle runs the tests."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

FILES = [file for file, count in (("a", 30), ("b", 20), ("c", 1), ("d", 9)) for _ in range(count)]


def test_a_seed_draws_the_files_and_the_tests_of_each(pytestconfig):
    conftest = pytestconfig.pluginmanager.get_plugin(str(Path(__file__).with_name("conftest.py")))
    shuffled = conftest.shuffled
    order = shuffled(FILES, 3)
    assert sorted(order) == list(range(len(FILES)))
    assert len(list(groupby(FILES[number] for number in order))) == 4  # files stay together
    assert order == shuffled(FILES, 3)
    orders = [shuffled(FILES, seed) for seed in range(20)]
    assert len({tuple(one) for one in orders}) == 20
    assert {FILES[one[0]] for one in orders} == {"a", "b", "c", "d"}
    in_a = [number for number in order if FILES[number] == "a"]
    assert in_a != sorted(in_a)
