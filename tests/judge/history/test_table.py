"""The table of a results folder: with it, without it and whatever happened to it, one output.

Tests cnnbench/judge/history/cache.py.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sqlite3
from dataclasses import replace

import pytest
from forked import Forked, Server

from cnnbench.cli import main
from cnnbench.judge.history import cache as table
from cnnbench.judge.history import contents, reading
from cnnbench.records.metric import HISTORY


@pytest.fixture
def folder(tmp_path, by_commit, saved, reductions, monkeypatch):
    """Runs, reductions, a failure, a faulty file, a copy and another document."""
    monkeypatch.setattr(table, "FEWEST", 1)
    results = saved(tmp_path / "results", by_commit.history([100.0] * 8, per_commit=2))
    rows = [reductions.point(2.0, spec=spec) for spec in ("xring", "pscpu")]
    others = [by_commit(error="no memory"), by_commit(50.0, flags={"batch_size": 9})]
    saved(results / "deep", [reductions(*rows), *others])
    (results / "cut.json").write_text('{"schema": 1, "run_id"')
    (results / "other.json").write_text('{"schema": 1, "kind": "comparison"}')
    shutil.copy(min(results.glob("*.json")), results / "z-copy.json")
    return results


@pytest.fixture
def parsed(monkeypatch):
    """Names of the files that are parsed; those whose content the table knows are not."""
    found = []
    real = reading.read_content

    def read_content(path, data):
        found.append(os.path.basename(path))
        return real(path, data)

    monkeypatch.setattr(reading, "read_content", read_content)
    return found


@pytest.fixture
def output(folder, capfd):
    """What the command prints about the folder."""

    def of(metric="throughput"):
        code = main(["history", str(folder), "--format=json", f"--metric={metric}"])
        return code, *capfd.readouterr()

    return of


@pytest.fixture
def expected(folder, output, monkeypatch):
    """What it prints without a table."""
    with monkeypatch.context() as patch:
        patch.setattr(table.MeasurementCache, "write", lambda *_, **__: None)
        return output()


def test_with_and_without_a_table_the_output_is_the_same(folder, output, expected, parsed):
    assert not (folder / table.FILE).exists()
    assert output() == expected
    assert len(parsed) == 22
    parsed.clear()
    assert output() == expected
    assert parsed == []
    assert output("bus_bandwidth")[0] == 3  # a faulty file was skipped
    assert parsed == []
    assert expected[0] == 3
    assert "cut off" in expected[2]


def test_new_changed_replaced_and_removed_files(folder, output, parsed, by_commit, expected):
    output()
    parsed.clear()
    names = sorted(folder.glob("*.json"))
    (folder / "new.json").write_text(replace(by_commit(70.0, "new"), run_id="new").to_json())
    os.utime(names[3])  # of the same content
    about, text = names[4].stat(), names[4].read_text()
    names[4].write_text(text.replace('"lenet"', '"lenot"'))  # of the same size
    os.utime(names[4], ns=(about.st_atime_ns, about.st_mtime_ns))
    (folder / "deep").rename(folder / "moved")
    after = output()
    assert sorted(parsed) == sorted(
        ["new.json", names[4].name, *(one.name for one in (folder / "moved").iterdir())]
    )
    (folder / table.FILE).unlink()
    assert output() == after != expected


@pytest.mark.parametrize("damage", ["empty", "garbage", "holes", "link", "folder"])
def test_a_damaged_table_is_no_obstacle(folder, output, expected, parsed, damage, tmp_path):
    output()
    path = folder / table.FILE
    data = path.read_bytes()
    path.unlink()
    other = tmp_path / "precious"
    other.write_bytes(b"x" * 5000)
    if damage == "link":
        path.symlink_to(other)
    elif damage == "folder":
        path.mkdir()
    else:
        holes = data[:200] + bytes(len(data) - 400) + data[-200:]
        made = {"empty": b"", "garbage": b"no table" * 999, "holes": holes}
        path.write_bytes(made[damage])
    assert output() == expected
    parsed.clear()
    assert output() == expected
    assert bool(parsed) == (damage in ("link", "folder"))  # else it was made anew
    assert other.read_bytes() == b"x" * 5000


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE columns SET data = CAST(replace(data, '\"ok\"', '\"no\"') AS BLOB)",
        "UPDATE columns SET block = block || 'x'",
        "UPDATE columns SET seal = 'another version'",
        "DELETE FROM columns WHERE name = 'files'",
        "DELETE FROM columns WHERE name = 'throughput'",
        "ALTER TABLE columns DROP COLUMN data",
    ],
)
def test_only_what_was_written_counts(folder, output, expected, parsed, damage):
    output()
    with sqlite3.connect(folder / table.FILE) as database:
        database.execute(damage)
    database.close()
    parsed.clear()
    assert output() == expected
    assert parsed
    parsed.clear()
    assert output() == expected
    assert parsed == []


def test_a_further_metric_is_computed_for_all(folder, output, parsed, monkeypatch):
    output()
    parsed.clear()
    found = []
    with monkeypatch.context() as patch:
        patch.setitem(HISTORY, "more", replace(HISTORY["step_seconds"], name="more"))
        table.code_digest.cache_clear()
        for name in ("step_seconds", "more", "step_seconds"):
            entries = [
                one
                for one in contents(folder, metrics=(name,)).entries
                if one.configuration.kind == "run"
            ]
            found.append([one.values.get(name) for one in entries])
        assert found[0] == found[1] == found[2]
        assert sum(value is not None for value in found[0]) == 17
        assert len(parsed) == 22
    table.code_digest.cache_clear()


def test_a_locked_table_and_one_that_cannot_be_written(folder, output, expected, monkeypatch):
    output()
    holder = sqlite3.connect(folder / table.FILE)
    holder.execute("BEGIN EXCLUSIVE")
    waits: list[object] = []
    connect = sqlite3.connect
    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", lambda *a, **b: waits.append(a) or connect(*a, **b))
        code, out, err = output()
    assert len(waits) == 1
    line, *others = err.splitlines()
    assert line.startswith(f"cnnbench: {folder / table.FILE} is locked")
    assert (code, out, others) == (*expected[:2], expected[2].splitlines())
    holder.close()

    def refuse(address, **options):  # root may write everywhere
        if "mode=rwc" in address:
            raise sqlite3.OperationalError("attempt to write a readonly database")
        return connect(address, **options)

    monkeypatch.setattr(sqlite3, "connect", refuse)
    assert output() == expected
    (folder / table.FILE).unlink()
    assert output() == expected
    assert not (folder / table.FILE).exists()


@pytest.mark.slow
def test_four_commands_at_once_one_of_which_finds_it_damaged(folder, output, expected, tmp_path):
    """Real processes, because locks are of processes."""
    (folder / table.FILE).write_bytes(b"no table" * 999)
    code = "import sys; from cnnbench.judge.history import cache as table; table.FEWEST = 1; "
    code += "from cnnbench.cli import main; sys.exit(main(sys.argv[1:]))"
    server = Server("from cnnbench.cli import main")
    logs = [(tmp_path / f"out{number}", tmp_path / f"err{number}") for number in range(4)]
    words = ["history", folder, "--format=json"]
    running = [Forked(code, words, *files, server=server) for files in logs]
    for one, files in zip(running, logs, strict=True):
        assert (one.wait(300), *(file.read_text() for file in files)) == expected
    server.close()
    assert output() == expected


def test_several_processes_read_many_files_and_may_be_killed(folder, expected, output, monkeypatch):
    monkeypatch.setattr(reading, "MANY", 2)
    monkeypatch.setattr(reading, "CHUNK", 3)
    monkeypatch.setattr(reading, "usable_cpu_numbers", lambda: (0, 1))
    assert output() == expected
    (folder / table.FILE).unlink()
    monkeypatch.setattr(multiprocessing.get_context("fork").Process, "run", lambda _: os._exit(9))
    assert output() == expected


def test_few_files_leave_no_table(folder, output, monkeypatch):
    monkeypatch.setattr(table, "FEWEST", 500)
    output()
    assert not (folder / table.FILE).exists()
