"""Documents for other programs against files that were looked at; UPDATE_GOLDEN=1 rewrites them.

Tests cnnbench/judge/report/exports.py.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
from golden import golden

from cnnbench.judge.compare import Criteria, Samples, compare_records, judge
from cnnbench.judge.compare.configuration import Configuration
from cnnbench.judge.report import exports
from cnnbench.judge.report.exports import comparison_metrics, shared_labels
from cnnbench.records.exports import EXPORTS
from cnnbench.records.metric import ALL
from cnnbench.records.subject import Subject

GOLDEN = Path(__file__).parent / "golden"
SUFFIXES = {"openmetrics": "txt"}
SPEEDS = (100.0, 101.0, 99.0, 100.5, 99.5, 100.2)
HOSTILE = 'a"b\\c\nd {e="f"} # EOF \x1b[31m\udc80'
SAMPLE = re.compile(
    r'cnnbench_\w+\{(?:\w+="(?:[^"\\\n]|\\["\\n])*",?)*\} -?[\d.]+(?:e[-+]?\d+)? \d+\.\d{3}'
)


def side(full_runs, name, revision, speeds, **more):
    subject = Subject(repository="example.org/nets", revision=revision * 40, dirty=False, side=name)
    flags = {"result_label": f"branch={name},host=box", **more.pop("flags", {})}
    memory = more.pop("memory", 1000)
    return [
        run
        for index, speed in enumerate(speeds)
        for run in full_runs.with_memory(
            memory + index, subject=subject, flags=flags, step_seconds=(8 / speed,) * 3, **more
        )
    ]


@pytest.fixture
def full_runs(machine_runs):
    """Runs as for comparisons, not those that tests of reports make."""
    return machine_runs


@pytest.fixture
def figures(full_runs):
    """Two configurations: one got slower and larger, one has too few processes for intervals."""
    base = side(full_runs, "a", "a", SPEEDS)
    base += side(full_runs, "a", "a", SPEEDS[:4], flags={"model": "resnet20"})
    new = side(full_runs, "b", "b", [0.8 * speed for speed in SPEEDS], memory=1500)
    new += side(full_runs, "b", "b", SPEEDS[:4], flags={"model": "resnet20"})
    return comparison_metrics(
        compare_records(base, new, Criteria(metrics=("throughput", "memory")))
    )


@pytest.mark.parametrize("format", EXPORTS)
def test_golden(figures, format):
    text = EXPORTS[format](figures)[0]
    path = GOLDEN / f"{format}.{SUFFIXES.get(format, 'json')}"
    assert text == golden(path, text)


def test_no_figure_is_of_two_subjects(full_runs):
    new = side(full_runs, "b", "b", SPEEDS) + side(
        full_runs, "b", "c", [10 * speed for speed in SPEEDS]
    )
    found = comparison_metrics(compare_records(side(full_runs, "a", "a", SPEEDS), new))
    speeds = {
        one.origin.revision[0]: one
        for one in found
        if one.role == "new" and one.metric.name == "throughput"
    }
    assert {name: one.value for name, one in speeds.items()} == pytest.approx(
        {"b": 100.1, "c": 1001.0}
    )
    assert all(one.judgement is None for one in speeds.values())
    # One series of two commits; formats of one commit name what they leave out.
    assert len({one.series_name for one in speeds.values()}) == 1
    assert "1 other value left out" in exports.bencher(found)[1]
    for format in EXPORTS:
        numbers = re.findall(r"\d+\.\d+", EXPORTS[format](found)[0])
        assert not any(101 < float(number) < 990 for number in numbers)


FACTS = {"cpu_model": "Fast CPU", "architecture": "x86_64", "tensorflow_version": "2.21.0"}
NAMES = {
    "bencher": lambda text: set(json.loads(text)),
    "github-action-benchmark": lambda text: {one["name"] for one in json.loads(text)},
    "mlflow": lambda text: {one["create"]["run_name"] for one in json.loads(text)["runs"]},
    "openmetrics": lambda text: {
        re.sub(r'verdict="\w+",', "", line.partition("}")[0])
        for line in text.splitlines()
        if line.startswith("cnnbench_throughput_images")
    },
    "junit": lambda text: set(re.findall('name="([^"]*[]])"', text)),
}
"""Names of series in a document."""


NETS = "example.org/nets"
NEIGHBOURS = [
    ("bencher", {"flags": {"num_intra_threads": 1}}),
    ("mlflow", {"flags": {"num_intra_threads": 1}}),
    ("github-action-benchmark", {"environment": {"tensorflow_version": "2.18.0"}}),
    ("openmetrics", {"environment": {"architecture": "arm64"}}),
    ("openmetrics", {"subject": Subject(repository="example.org/others", revision="b" * 40)}),
    ("junit", {"subject": Subject(repository=NETS, revision="b" * 40, side="a")}),
    ("mlflow", {"subject": Subject(repository=NETS, revision="b" * 40, side="a")}),
]


@pytest.mark.parametrize(("format", "neighbour"), NEIGHBOURS)
def test_names_do_not_depend_on_what_else_is_there(
    lenet_runs, saved, tmp_path, call, format, neighbour
):
    subject = Subject(repository=NETS, revision="b" * 40)
    runs = lenet_runs(FACTS)
    others = runs.of(*SPEEDS, **{"subject": subject, **neighbour})
    own = runs.of(*SPEEDS, subject=subject)
    found = []
    for folder, records in (("alone", own), ("together", [*others, *own])):
        stored = saved(tmp_path / folder, records)
        texts = [call("compare", stored, stored, f"--format={format}", code=None).out]
        if format != "junit":
            texts.append(call("history", stored, f"--format={format}").out)
        found.append([NAMES[format](text) for text in texts])
    for alone, together in zip(*found, strict=True):
        assert alone
        assert alone <= together
    # Others hold one subject, the newest; in a history, a commit is one point, whatever its side.
    alone, together = (names[0] for names in found)
    assert format not in ("openmetrics", "mlflow") or len(together) == 2 * len(alone)


def test_what_describes_a_value(figures):
    texts = [one.code_and_machine_texts() for one in figures]
    assert {one["role"] for one in texts} == {"base", "new"}
    for one in texts:
        side = {"base": "a", "new": "b"}[one["role"]]
        assert (one["side"], one["revision"]) == (side, side * 40)
        assert (one["repository"], one["dirty"]) == ("example.org/nets", "false")
        assert "point" not in one  # which is the revision
        assert len(one["machine_key"]) == 8
    day = replace(figures[0], point="2026-11-20").code_and_machine_texts()
    assert day == {**texts[0], "point": "2026-11-20"}
    labels = [{"branch": "x", "host": "a", "commit": "1"}, {"branch": "x", "host": "b"}]
    assert shared_labels(labels) == {"branch": "x"}
    assert shared_labels(labels[:1]) == {"branch": "x", "host": "a"}


def test_a_format_of_one_unit_names_what_it_leaves_out(figures):
    left_out = exports.github_action_benchmark(figures)[1]
    assert "memory omitted (--metrics=memory" in left_out
    assert exports.bencher(figures)[1] == ""


def test_only_processes_that_succeeded_count(full_runs):
    failed = full_runs(1.0, error=("Error", "no memory"))
    found = comparison_metrics(
        compare_records(full_runs.of(100.0, 100.0), [full_runs(90.0), failed])
    )
    speeds = {one.role: one.sample.values for one in found if one.metric.name == "throughput"}
    assert speeds == {"base": pytest.approx((100.0, 100.0)), "new": pytest.approx((90.0,))}


def test_openmetrics_has_a_unit_for_every_metric_and_valid_lines(figures):
    for metric in ALL.values():
        text = exports.openmetrics([replace(figures[0], metric=metric)])[0]
        assert ("# UNIT " in text) or metric.unit in ("", "number", "CPUs", "loss"), metric.name
    bandwidth = replace(figures[0], metric=ALL["bus_bandwidth"])
    (sample, *_) = (
        line
        for line in exports.openmetrics([bandwidth])[0].splitlines()
        if line.startswith("cnnbench_bus_bandwidth_bytes_per_second{")
    )
    assert float(sample.split()[-2]) == pytest.approx(1e9 * bandwidth.value)
    lines = exports.openmetrics(figures)[0].splitlines()
    assert lines[-1] == "# EOF"
    assert lines.count("# EOF") == 1
    names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(set(names)) == len(names)
    for line in lines:
        if line.startswith("# UNIT"):
            _, _, name, unit = line.split()
            assert name.endswith(f"_{unit}")
        assert line.startswith("# ") or SAMPLE.fullmatch(line)


def test_hostile_text_stays_within_its_place(full_runs):
    flags, facts = {"model": HOSTILE}, {"cpu_model": HOSTILE}
    label = {"result_label": f"x-y={HOSTILE},x.y=2"}
    records = full_runs.of(*SPEEDS, flags={**flags, **label}, environment=facts)
    found = comparison_metrics(compare_records(records, full_runs.of(*SPEEDS, flags=flags)))
    for format in EXPORTS:
        text = EXPORTS[format](found)[0]
        text.encode()
        assert format in SYNTAX, (
            f"tests/judge/report/exports/test_exports.py: SYNTAX needs {format}"
        )
        SYNTAX[format](text)


def _check_samples(text):
    """Checks the lines of OpenMetrics."""
    samples = [line for line in text.splitlines() if not line.startswith("# ")]
    assert samples
    assert all(map(SAMPLE.fullmatch, samples))
    assert all(len(set(n)) == len(n) for n in (re.findall(r'(\w+)="', s) for s in samples))


SYNTAX = {
    "bencher": json.loads,
    "github-action-benchmark": json.loads,
    "mlflow": json.loads,
    "openmetrics": _check_samples,
}
"""What raises an error unless a text is of a format."""


@pytest.mark.parametrize("format", EXPORTS)
def test_nothing_to_export_is_a_valid_document(format):
    text = EXPORTS[format]([])[0]
    path = GOLDEN / f"nothing-{format}.{SUFFIXES.get(format, 'json')}"
    assert text == golden(path, text)


def configuration(flags):
    return Configuration(flags=flags, key="0" * 12, resolved=True)


def exported(full_runs, *speeds, metric="throughput", **more):
    """A metric of some processes."""
    (record, *_) = runs = full_runs.of(*speeds)
    (found,) = [
        one
        for one in comparison_metrics(compare_records(runs, full_runs.of(*speeds)))
        if one.metric.name == "throughput" and one.role == "new"
    ]
    started = more.pop("started", None)
    if started is not None:
        more["started"] = datetime(2026, 11, 20, 12, 0, started, tzinfo=timezone.utc)
    assert record.status == "ok"
    return replace(found, **{"metric": ALL[metric], "judgement": None, "role": "", **more})


def test_of_a_repeated_measurement_the_last_one_is_written(full_runs):
    both = [exported(full_runs, speed, started=at) for speed, at in ((100.0, 9), (200.0, 3))]
    text, left_out = exports.bencher(both)
    (measures,) = json.loads(text).values()
    assert [one["value"] for one in measures.values()] == [pytest.approx(100.0)]
    assert "1 other value " in left_out
    again = exports.bencher(both[::-1])
    assert json.loads(again[0]) == json.loads(text)


@pytest.mark.parametrize(
    ("currents", "roles", "written", "others"),
    [
        ((True,), ("",), 1, None),
        ((True, False), ("", ""), 1, "1 other value "),
        ((True, False, False), ("", "", ""), 1, "2 other values"),
        ((False, False), ("", ""), 0, "2 other values"),
        # Values of the base of a comparison are not counted.
        ((True, False), ("new", "base"), 1, None),
        ((True, False, False), ("new", "base", "new"), 1, "1 other value "),
        ((), (), 0, None),
    ],
)
def test_values_of_other_commits_are_counted(full_runs, currents, roles, written, others):
    made = [
        exported(full_runs, 100.0, current=current, role=role)
        for current, role in zip(currents, roles, strict=True)
    ]
    text, left_out = exports.bencher(made)
    assert sum(map(len, json.loads(text).values())) == written
    assert others in left_out if others else left_out == ""


def test_intervals_need_six_processes(full_runs):
    names = ("value", "lower_value", "upper_value")
    for count, known in ((5, 1), (6, 3)):
        figure = exported(full_runs, *range(100, 100 + count))
        (measures,) = json.loads(exports.bencher([figure])[0]).values()
        (values,) = measures.values()
        assert [*values] == [*names[:known]]
        statistics = figure.statistics()
        assert {*statistics} == {"", "processes", *(("lower", "upper") if known > 1 else ())}
        assert statistics["processes"] == count
        (entry,) = json.loads(exports.github_action_benchmark([figure])[0])
        assert ("range" in entry) == (known > 1)


@pytest.mark.parametrize(("length", "bytes"), [(10, None), (1500, 1024)])
def test_names_of_benchmarks_have_at_most_1024_bytes(full_runs, length, bytes):
    figure = exported(full_runs, 100.0)
    configuration = replace(
        figure.configuration, flags={**figure.configuration.flags, "model": "é" * length}
    )
    named = replace(figure, configuration=configuration)
    (name,) = json.loads(exports.bencher([named])[0])
    if bytes is None:
        assert name == named.series_name
    else:
        assert bytes - 1 <= len(name.encode()) <= bytes
        assert named.series_name.startswith(name)


@pytest.mark.parametrize(
    ("metrics", "written", "left_out"),
    [
        (("throughput", "memory"), 1, "memory omitted"),
        (("memory", "throughput"), 1, "throughput omitted"),
        (("throughput", "mfu"), 2, ""),
        (("memory", "step_seconds", "throughput"), 2, "throughput omitted"),
    ],
)
def test_one_file_has_one_direction(full_runs, metrics, written, left_out):
    made = [exported(full_runs, 100.0, metric=name) for name in metrics]
    text, remark = exports.github_action_benchmark(made)
    assert len(json.loads(text)) == written
    assert (left_out in remark) if left_out else remark == ""
    words = [word for word in ("bigger", "smaller") if word in remark]
    assert words == (
        [] if not left_out else ["bigger" if metrics[0] == "throughput" else "smaller"]
    )


@pytest.mark.parametrize(
    ("count", "sizes"),
    [(100, [100]), (101, [100, 1]), (201, [100, 100, 1])],
)
def test_requests_to_mlflow_have_at_most_a_hundred_parameters(full_runs, count, sizes):
    figure = exported(full_runs, 100.0)
    flags = {f"flag{number}": number for number in range(count)}
    (run,) = json.loads(exports.mlflow([replace(figure, configuration=configuration(flags))])[0])[
        "runs"
    ]
    batches = run["log_batch"]
    assert [len(batch["params"]) for batch in batches] == sizes
    assert ["metrics" in batch for batch in batches] == [True] + [False] * (len(sizes) - 1)
    keys = [one["key"] for batch in batches for one in batch["params"]]
    assert sorted(keys) == sorted(flags)


def test_runs_and_texts_of_mlflow(full_runs):
    figure = exported(full_runs, *range(100, 106), labels={"branch": "x"})
    long = replace(figure, configuration=configuration({"model": "x" * 7000}))
    (run,) = json.loads(exports.mlflow([long])[0])["runs"]
    assert len(run["log_batch"][0]["params"][0]["value"]) == 6000
    milliseconds = round(figure.started.timestamp() * 1000)
    assert (run["create"]["start_time"], run["update"]["end_time"]) == (milliseconds,) * 2
    values = {one["key"]: one["value"] for one in run["log_batch"][0]["metrics"]}
    assert values["throughput"] == pytest.approx(102.5)
    assert values["throughput.processes"] == 6
    assert {one["step"] for one in run["log_batch"][0]["metrics"]} == {0}
    assert {one["timestamp"] for one in run["log_batch"][0]["metrics"]} == {milliseconds}
    tags = {one["key"]: one["value"] for one in run["create"]["tags"]}
    assert tags["cnnbench.label.branch"] == "x"
    # Metrics of one configuration and point are one run.
    other = replace(figure, metric=ALL["memory"])
    assert len(json.loads(exports.mlflow([figure, other])[0])["runs"]) == 1
    day = replace(figure, point="2026-11-20")
    assert len(json.loads(exports.mlflow([figure, day])[0])["runs"]) == 2


def samples_of(figures, start):
    """(value, time) of the lines of OpenMetrics that begin so."""
    lines = exports.openmetrics(figures)[0].splitlines()
    found = [line.rpartition("} ")[2].split() for line in lines if line.startswith(f"{start}{{")]
    return [(float(value), float(time)) for value, time in found]


def test_samples_are_in_base_units_and_in_order_of_time(full_runs):
    later, first = (exported(full_runs, speed, started=at) for speed, at in ((100.0, 9), (50.0, 3)))
    found = samples_of([later, first], "cnnbench_throughput_images_per_second")
    times = [one.started.timestamp() for one in (first, later)]
    assert found == [
        (pytest.approx(50.0), pytest.approx(times[0])),
        (pytest.approx(100.0), pytest.approx(times[1])),
    ]
    processes = samples_of([later], "cnnbench_throughput_processes")
    assert [value for value, _ in processes] == [1.0]
    bandwidth = replace(first, metric=ALL["bus_bandwidth"])
    assert [
        value for value, _ in samples_of([bandwidth], "cnnbench_bus_bandwidth_bytes_per_second")
    ] == [pytest.approx(50e9)]
    unknown = replace(first, metric=replace(first.metric, unit="parsecs"))
    assert [value for value, _ in samples_of([unknown], "cnnbench_throughput")] == [
        pytest.approx(50)
    ]
    judged = replace(bandwidth, judgement=judge(Samples([1.0] * 4, [1.1] * 4)))
    changes = samples_of([judged], "cnnbench_bus_bandwidth_change_ratio")
    assert [value for value, _ in changes] == [pytest.approx(0.1)]


def test_names_of_series_depend_on_flags_and_machines_only(full_runs):
    figure = exported(full_runs, 100.0)
    same = [
        replace(figure, metric=ALL["memory"]),
        replace(figure, origin=replace(figure.origin, revision="c" * 40, dirty=True)),
        replace(figure, role="base", point="x", labels={"a": "b"}),
    ]
    assert {one.series_name for one in same} == {figure.series_name}
    others = [
        replace(figure, origin=replace(figure.origin, side="a")),
        replace(figure, origin=replace(figure.origin, repository="example.org/x")),
        replace(figure, origin=replace(figure.origin, tensorflow="1.0")),
        replace(figure, configuration=configuration({"model": "lenet"})),
    ]
    assert len({one.series_name for one in (figure, *others)}) == 5
    digest = figure.series_name.rpartition("[")[2]
    assert len(digest) == 9
