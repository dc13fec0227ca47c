"""CPU time of history, compare, report, import and outputs, by the number of records."""

from __future__ import annotations

import functools
import shutil

import measure_results
import pytest
from growth import check_growth
from imports import TRAINING

from cnnbench.base.document import Report, Section, make_table, numeric_cell
from cnnbench.base.document.formats import render_report
from cnnbench.judge.history import cache

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_reader")]


@pytest.fixture
def one_reader(cpus, limits):
    """Records are read in this process, and folders that a test has just made count as old."""
    cpus({0})
    limits(cache, _RACY_NS=0)


@pytest.fixture
def days(tmp_path, lenet_runs):
    """days(N): a folder with N records of a year, of three configurations."""
    like = {**lenet_runs()(100.0).to_dict(), "losses": [], "step_cpu_seconds": []}

    @functools.cache
    def made(count):
        for path, text in measure_results.records(like, count):
            file = tmp_path / f"days-{count}" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return tmp_path / f"days-{count}"

    return made


@pytest.fixture
def sides(tmp_path, saved, runs):
    """sides(N): two folders with four runs of N configurations each."""

    @functools.cache
    def made(count):
        return [
            saved(
                tmp_path / f"{side}-{count}",
                [
                    runs(speed, flags={"batch_size": size})
                    for size in range(1, count + 1)
                    for speed in speeds
                ],
            )
            for side, speeds in (("base", (100, 101, 102, 103)), ("new", (90, 91, 92, 93)))
        ]

    return made


def test_history_of_new_records(days, call):
    def prepare(count):
        folder = days(count)

        def read():
            for table in folder.glob(f"{cache.FILE}*"):
                table.unlink()
            call("history", folder)

        return read

    check_growth(prepare, 60)


def test_history_of_known_records(days, call):
    @functools.cache
    def known(count):
        call("history", days(count))
        return days(count)

    def prepare(count, flag):
        folder = known(count)
        return lambda: call("history", folder, flag)

    for flag in ("--format=table", "--format=openmetrics"):
        check_growth(functools.partial(prepare, flag=flag), cache.FEWEST)


def test_history_of_many_configurations(sides, call):
    check_growth(lambda count: lambda: call("history", sides(count)[0]), 15)


@pytest.mark.parametrize("paired", [(), ("--paired",)])
def test_compare_of_many_runs(paired, days, call):
    def prepare(count):
        return lambda: call("compare", days(count), days(count), *paired, code=None)

    check_growth(prepare, 60)


def test_compare_of_many_configurations(sides, call):
    def prepare(count, format):
        return lambda: call("compare", *sides(count), f"--format={format}", code=None)

    for format in ("table", "markdown", "junit", "github"):
        check_growth(functools.partial(prepare, format=format), 8)


def test_a_report(sides, call):
    def prepare(count):
        return lambda: call("report", sides(count)[0], "--format=markdown")

    check_growth(prepare, 10)


def test_an_import(call, tmp_path):
    """Of a log with many runs, each of which becomes a file."""
    results = tmp_path / "results"

    def prepare(count):
        log = tmp_path / f"{count}.log"
        runs = (TRAINING.replace("8 per", f"{8 * n} per") for n in range(1, count + 1))
        log.write_text("".join(runs))

        def imported():
            shutil.rmtree(results, ignore_errors=True)
            call("import", log, f"--results={results}")
            assert len([*results.rglob("*.json")]) == count

        return imported

    check_growth(prepare, 60)


def test_a_page():
    """A page's charts take seconds, however many rows there are, so it has none here."""

    def prepare(count):
        numbers = range(1, count + 1)
        rows = ({"run": f"run {number}", "ms": numeric_cell(float(number))} for number in numbers)
        section = Section.of([make_table(rows)], "runs", "Runs")
        report = Report(title="t", subtitle="", sections=(section,))
        return lambda: render_report(report, "html")

    check_growth(prepare, 1000)
