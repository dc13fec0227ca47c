"""Conditions and properties of machines in a report: what is counted, and what is the same."""

from __future__ import annotations

import pytest
from pages import report_of, rows, section

from cnnbench.base.document import Paragraph, Table
from cnnbench.judge.report.sections import environment as sections
from cnnbench.records.run import ConditionNote, Conditions


def note(name, when="during", text="x"):
    return ConditionNote(id=name, when=when, text=text, advice="stop")


def under(*notes, **during):
    return Conditions(before={}, during=during, notes=notes)


def answer(*records):
    found = [one for one in report_of(*records).answers if one.name == "Conditions"]
    return found[0] if found else None


def test_processes_with_disturbances_are_counted(full_runs):
    calm, busy = under(), under(note("load"))
    assert answer(full_runs(100)) is None
    assert answer(full_runs(100, conditions=calm)).tone == "good"
    one = answer(*(full_runs(100, conditions=own) for own in (calm, busy)), full_runs(100))
    assert (one.tone, one.text[:6]) == ("unsure", "1 of 2")
    two = answer(*(full_runs(100, conditions=busy) for _ in range(2)))
    assert two.text.startswith("2 of 2")
    assert one.text.split()[4] != two.text.split()[4]
    # Failed processes do not count.
    failed = full_runs(error=("E", "x"), step_seconds=(), losses=(), conditions=busy)
    assert answer(full_runs(100, conditions=calm), failed).tone == "good"


def test_the_three_most_frequent_disturbances_are_named(full_runs):
    names = ("load", "steal", "thermal", "swap")
    records = [
        full_runs(100, conditions=under(*(note(name, text=f"{name}!") for name in names[: 4 - n])))
        for n in range(4)
    ]
    found = answer(*records)
    assert [detail.rpartition(", ")[2] for detail in found.details] == [
        *("load!", "steal!", "thermal!")
    ]
    assert [
        f": {count} of 4" in text for count, text in zip((4, 3, 2), found.details, strict=True)
    ] == [*(True, True, True)]
    listed = rows(report_of(*records), "conditions")
    assert [row["processes"] for row in listed] == ["4 of 4", "3 of 4", "2 of 4", "1 of 4"]


def test_a_process_has_one_disturbance_of_a_kind_and_phase(full_runs):
    twice = under(note("load"), note("load", text="y"), note("load", "before"))
    listed = rows(report_of(full_runs(100, conditions=twice)), "conditions")
    assert [row["processes"] for row in listed] == ["1 of 1", "1 of 1"]
    assert len({row["when"] for row in listed}) == 2


def test_amounts_of_disturbances(full_runs):
    records = [
        full_runs(100, conditions=under(note("load"), other_cpus=cpus, steal_fraction=stolen))
        for cpus, stolen in ((0.5, 0.0), (1.5, 0.25), (0.7, 0.1))
    ]
    (row,) = rows(report_of(*records), "conditions", 1)
    assert row["CPUs used by others, median"] == "0.7000"
    assert row["CPUs used by others, at most"] == "1.500"
    assert row["stolen by the hypervisor, at most"] == "25.0 %"
    (first, *_) = section(report_of(*records), "conditions").blocks
    assert first.tone == "unsure"
    # Without a disturbance, the answer says so.
    report = report_of(full_runs(100, conditions=under(other_cpus=0.5)))
    assert "conditions" not in [one.key for one in report.sections]
    assert [one.tone for one in report.answers if one.name == "Conditions"] == ["good"]


def tables(report):
    return [one for one in section(report, "environment").blocks if isinstance(one, Table)]


def test_properties_that_differ_between_runs(full_runs):
    alike = report_of(full_runs(100, environment={"x": 1}), full_runs(100, environment={"x": 1}))
    assert "environment" not in [one.key for one in alike.sections]
    differ = report_of(full_runs(100, environment={"x": 1}), full_runs(100, environment={"x": 2}))
    (table,) = tables(differ)
    assert [title for title, _, _ in table.columns][3:] == ["x"]
    assert [row["x"] for row in rows(differ, "environment")] == ["1", "2"]
    # A run without the property differs, too.
    lacking = report_of(full_runs(100), full_runs(100, environment={"x": 2}))
    assert [row["x"] for row in rows(lacking, "environment")] == ["-", "2"]


def test_properties_that_affect_speed_come_first(full_runs):
    facts = [{"a_new_fact": n, "cpu_governor": str(n), "load_average_1min": n} for n in range(2)]
    report = report_of(*(full_runs(100, environment=own) for own in facts))
    titles = [title for title, _, _ in tables(report)[0].columns]
    assert titles[3:] == ["cpu_governor", "a_new_fact", "load_average_1min"]


def remarks(report):
    blocks = section(report, "environment").blocks
    return [one.text for one in blocks if isinstance(one, Paragraph)]


def test_only_runs_of_one_configuration_are_mixed(full_runs):
    facts = [{"cpu_governor": name} for name in ("performance", "powersave")]
    apart = [
        full_runs(100, environment=own, flags={"batch_size": size})
        for own, size in zip(facts, (8, 16), strict=True)
    ]
    assert remarks(report_of(*apart)) == []
    mixed = [full_runs(100, environment=own) for own in facts]
    assert [("cpu_governor" in text) for text in remarks(report_of(*mixed))] == [True]
    harmless = [full_runs(100, environment={"a_new_fact": n}) for n in range(2)]
    assert remarks(report_of(*harmless)) == []


@pytest.mark.parametrize(("count", "listed"), [(3, 3), (4, 3)])
def test_the_newest_runs_are_listed(full_runs, monkeypatch, count, listed):
    monkeypatch.setattr(sections, "MOST_LISTED", 3)
    made = [full_runs(100, environment={"x": number}) for number in range(count)]
    report = report_of(*made)
    found = rows(report, "environment")
    assert [row["x"] for row in found] == [str(n) for n in range(count - listed, count)]
    assert [row["run"] for row in found] == [run.run_id[:8] for run in made[-listed:]]
    assert (str(count) in tables(report)[0].title) == (count > listed)
