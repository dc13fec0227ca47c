"""The order of tests, drawn with a seed: --shuffle=SEED; see scripts/shuffled_test.

The tests of a file stay together, since they share what its fixtures make; the files, and the
tests of each file, are in any order. The seed alone decides, as every process of pytest-xdist
has to collect the same order.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --shuffle."""
    text = "run files, and the tests of each, in the order that SEED draws"
    parser.addoption("--shuffle", metavar="SEED", type=int, help=text)


def pytest_report_header(config: pytest.Config) -> str | None:
    """Tells the seed."""
    seed = config.getoption("--shuffle")
    return None if seed is None else f"order: --shuffle={seed}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shuffles where that is asked for."""
    seed = config.getoption("--shuffle")
    if seed is not None:
        files = [item.nodeid.partition("::")[0] for item in items]
        items[:] = [items[number] for number in shuffled(files, seed)]


def shuffled(files: Sequence[str], seed: int) -> list[int]:
    """The numbers of tests in the order that a seed draws.

    Args:
      files: of each test.
      seed: any number.
    """
    draw = random.Random(seed)
    by_file: dict[str, list[int]] = {}
    for number, file in enumerate(files):
        by_file.setdefault(file, []).append(number)
    groups = list(by_file.values())
    draw.shuffle(groups)
    for group in groups:
        draw.shuffle(group)
    return [number for group in groups for number in group]
