"""pytest plug-in: the fixture ``cnnbench`` measures, so that a test can assert on speed.

pytest imports this module in every session, so it imports nothing of cnnbench; that happens
when a test asks for the fixture (`cnnbench.testing` is what it gets).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from cnnbench.testing import Bench

_TIMEOUT = "cnnbench_timeout"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the fixture."""
    group = parser.getgroup("cnnbench", "cnnbench: benchmarks of training")
    group.addoption(
        "--cnnbench-update",
        action="store_true",
        help="write baselines instead of comparing with them",
    )
    group.addoption(
        "--cnnbench-results",
        metavar="DIR",
        help="keep records and logs in DIR, by test, instead of pytest's temporary folder",
    )
    parser.addini(_TIMEOUT, "seconds for each process of the cnnbench fixture", default="600")


@pytest.fixture
def cnnbench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Measures in fresh processes; see `cnnbench.testing.Bench`."""
    from cnnbench.testing import Bench, folder_name

    kept = request.config.getoption("cnnbench_results")
    if kept is None:
        folder = tmp_path_factory.mktemp("cnnbench")
    else:
        folder = Path(kept).resolve() / folder_name(request.node.nodeid)
    text = request.config.getini(_TIMEOUT)
    try:
        timeout = float(text)
    except ValueError:
        raise pytest.UsageError(f"{_TIMEOUT} = {text}: must be a number of seconds") from None
    return Bench(
        folder, timeout=timeout, update_baselines=request.config.getoption("cnnbench_update")
    )
