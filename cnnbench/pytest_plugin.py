"""pytest plug-in that provides the fixture ``cnnbench`` for tests that check training speed.

pytest imports this module in every session, so cnnbench is imported only when a test asks for the
fixture, a `cnnbench.testing.Bench`.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import sys
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

import pytest

if TYPE_CHECKING:
    from cnnbench.testing import Bench

_TIMEOUT = "cnnbench_timeout"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options of the fixture ``cnnbench`` to pytest."""
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
    """Fixture with which a test measures training in new processes; see
    `cnnbench.testing.Bench`.
    """
    from cnnbench.base.urls import local_path
    from cnnbench.base.values import parse_number
    from cnnbench.testing import Bench

    kept = request.config.getoption("cnnbench_results")
    if kept is None:
        folder = tmp_path_factory.mktemp("cnnbench")
    else:
        test = request.node.nodeid
        readable = re.sub(r"[^\w.-]+", "-", test).strip("-")[-100:]
        # The digest distinguishes tests that have the same readable name.
        digest = hashlib.sha256(test.encode(errors="surrogatepass")).hexdigest()[:12]
        folder = Path(local_path(kept, "cnnbench-results")).resolve() / f"{readable}-{digest}"
    text = request.config.getini(_TIMEOUT)
    try:
        timeout = parse_number(text)
    except ValueError:
        raise pytest.UsageError(f"{_TIMEOUT} = {text}: must be a number of seconds") from None
    return Bench(
        folder,
        root=request.config.rootpath,
        timeout=timeout,
        update_baselines=request.config.getoption("cnnbench_update"),
        terminal=_terminal(request.config),
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Reports a wrong use of the fixture ``cnnbench`` as one line with file, line number and
    message.
    """
    report = yield
    errors = sys.modules.get("cnnbench.errors")
    if (
        errors is None
        or call.excinfo is None
        or "cnnbench" not in getattr(item, "fixturenames", ())
    ):
        return report
    if isinstance(call.excinfo.value, errors.UsageError):
        places = [entry.lineno + 1 for entry in call.excinfo.traceback if entry.path == item.path]
        place = f"{item.location[0]}:{places[-1]}: " if places else ""
        report.longrepr = f"{place}{' '.join(str(call.excinfo.value).split())}"
    return report


def _terminal(config: pytest.Config) -> TextIO | None:
    """Returns the terminal to which pytest reports. Returns None with -q, in pytest-xdist worker
    processes, and without a terminal.
    """
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or reporter.verbosity < 0:
        return None
    is_terminal = reporter.isatty
    # In pytest 8, `isatty` is an attribute instead of a method.
    if not (is_terminal() if callable(is_terminal) else is_terminal):
        return None
    capture = config.pluginmanager.get_plugin("capturemanager")
    return cast("TextIO", _PytestReporterStream(reporter, capture))


class _PytestReporterStream(io.TextIOBase):
    """Text stream that writes to pytest's terminal reporter, even while pytest captures output."""

    def __init__(self, reporter: Any, capture: Any) -> None:
        self._reporter = reporter
        self._capture = capture

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        shown = contextlib.nullcontext()
        if self._capture is not None:
            shown = self._capture.global_and_fixture_disabled()
        with shown:
            self._reporter.ensure_newline()
            self._reporter.write(text, flush=True)
        return len(text)
