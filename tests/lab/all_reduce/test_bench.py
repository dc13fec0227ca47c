"""Whole runs in this process (session.py, program.py), on its logical CPU devices.

Tests cnnbench/lab/all_reduce/session.py and cnnbench/lab/all_reduce/program.py.
"""

import csv
import io
import json
import re

import pytest
import tensorflow as tf

from cnnbench.base.terminal import LineWriter, MessageWriter, ProgressLine
from cnnbench.errors import BenchmarkError
from cnnbench.flags.groups.all_reduce import params_from_values
from cnnbench.lab.all_reduce import program, table
from cnnbench.lab.all_reduce.plan import make_plan
from cnnbench.lab.all_reduce.session import AllReduceBenchmark
from cnnbench.machine import checks
from cnnbench.records.all_reduce import AllReduceRecord
from cnnbench.run.driver.membership import JobMembership
from cnnbench.variable_mgr.all_reduce import registry

pytestmark = pytest.mark.usefixtures("quick_start")

QUICK = {
    "device": "cpu",
    "num_gpus": (3,),
    "sizes": "64",
    "all_reduce_spec": "copy",
    "num_batches": 2,
    "num_warmup_batches": 1,
    "iters_per_step": 2,
}


class Run:
    """A run, its table and its notices."""

    def __init__(self, explicit=(), **flags):
        self.out, self.err = io.StringIO(), io.StringIO()
        plan, messages = (
            make_plan(params_from_values({**QUICK, **flags}), explicit),
            MessageWriter(self.err),
        )
        self.bench = AllReduceBenchmark(
            plan,
            LineWriter(self.out),
            command=("cnnbench", "allreduce"),
            explicit_flags=explicit,
            messages=messages,
            progress=ProgressLine.silent(),
            membership=JobMembership(plan.run, messages.notice, messages.error, {}),
        )

    def __call__(self):
        return self.bench.run()

    @property
    def rows(self):
        lines = self.out.getvalue().splitlines()
        return [line.split() for line in lines if not line.startswith("#")]

    @property
    def comments(self):
        return [line for line in self.out.getvalue().splitlines() if line.startswith("#")]


@pytest.fixture
def algorithm(monkeypatch):
    """Makes a function of (tensors, devices, index) an algorithm for one test."""

    def add(name, function):
        def factory(context):
            return lambda tensors, index: function(tensors, context.devices, index)

        factory.__module__ = "cnnbench.own"  # results of plug-ins are checked when they are traced
        declared = registry.Registration(name=name, factory=factory)
        monkeypatch.setitem(registry.ALGORITHMS, name, declared)

    return add


def total(tensors):
    return tf.add_n(list(tensors))


def one_device_wrong(tensors, devices, index):
    with tf.device(devices[0]):
        right = total(tensors)
    with tf.device(devices[-1]):
        return [right] * (len(devices) - 1) + [tf.identity(tensors[-1])]


def on_first(function):
    """An algorithm that makes one sum on the first device."""

    def reduce(tensors, devices, index):
        with tf.device(devices[0]):
            return [function(tensors)] * len(devices)

    return reduce


def raises(tensors, devices, index):
    raise RuntimeError("out of ideas")


def fails_at_run_time(tensors, devices, index):
    with tf.device(devices[0]):
        with tf.control_dependencies([tf.debugging.assert_less(total(tensors), -1e9)]):
            return [total(tensors)] * len(devices)


def test_wrong_sums_and_errors_are_counted_and_fail_the_run(algorithm, tmp_path):
    # 16 elements on 3 devices, twice. A few sums of small integers are right by chance.
    wrong = {
        "left_out": (on_first(lambda tensors: total(tensors[:-1])), range(90, 97)),
        "nan": (on_first(lambda tensors: total(tensors) * float("nan")), range(96, 97)),
        "element": (on_first(lambda ts: total(ts) + 0.5 * tf.one_hot(15, 16)), range(6, 7)),
        "shape": (on_first(lambda tensors: total(tensors)[1:]), range(96, 97)),
        "device": (one_device_wrong, range(28, 33)),
    }
    faulty = {"raises": raises, "fails": fails_at_run_time}
    for name, function in [*((name, one) for name, (one, _) in wrong.items()), *faulty.items()]:
        algorithm(name, function)
    path = tmp_path / "r.json"
    run = Run(all_reduce_spec=",".join([*wrong, *faulty, "copy"]), result_json=str(path))
    reason = r"left_out on 3 devices, 64 bytes: \d+ of 96 elements are wrong; 6 more rows"
    with pytest.raises(BenchmarkError, match=reason):
        run()
    assert json.loads(path.read_text())["status"] == "failed"
    *points, first, second, right = AllReduceRecord.from_json(path.read_bytes()).points
    for point, (name, (_, expected)) in zip(points, wrong.items(), strict=True):
        assert (point.spec, point.checked) == (name, 96)
        assert point.wrong in expected
    assert first.error == "RuntimeError: out of ideas"
    assert second.error is not None
    assert second.error.startswith("InvalidArgumentError")
    assert (right.spec, right.wrong, right.checked) == ("copy", 0, 96)
    # Wrong or not, they were timed.
    assert {len(point.seconds) for point in (*points, right)} == {2}
    numbers = [str(point.wrong) for point in points]
    assert [row[-2] for row in run.rows] == [*numbers, "error", "error", "0"]
    assert f"# Wrong values: {sum(p.wrong for p in points)} of 576 FAILED" in run.comments
    assert "# Rows with errors: 2 FAILED" in run.comments


@pytest.mark.slow
def test_every_algorithm_on_every_number_of_devices(tmp_path, holds):
    path, rows = tmp_path / "r.json", tmp_path / "r.csv"
    run = Run(
        explicit=("sizes",),
        sizes="52*3",
        all_reduce_spec=None,
        num_gpus=(2, 3),
        result_json=str(path),
        result_csv=str(rows),
    )
    record = run()
    specs = {point.spec for point in record.points}
    assert {"copy", "xring", "pscpu", "rechd", "tree", "collective"} <= specs
    assert len(record.points) == 2 * len(specs)
    assert all(p.wrong == 0 and p.checked == 2 * p.elements * p.devices for p in record.points)
    assert all(len(p.seconds) == 2 and min(p.seconds) > 0 for p in record.points)
    assert {(p.bytes, p.tensors, p.elements, p.devices) for p in record.points} == {
        (156, 3, 39, 2),
        (156, 3, 39, 3),
    }
    assert [(c.bytes, c.devices) for c in record.copies] == [(156, 2), (156, 3)]
    # What does not work here is said once, not measured.
    assert sum("nccl" in line for line in run.comments) == 1
    assert len(run.rows) == len(record.points)
    assert AllReduceRecord.from_json(path.read_bytes()) == record
    holds("allreduce", json.loads(path.read_bytes()))
    assert record.status == "ok"
    assert record.explicit_flags == ("sizes",)
    assert record.config["sizes"] == ["52*3"]
    with rows.open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [one["spec"] for one in table] == [point.spec for point in record.points]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "spec", "wires", "buckets", "sizes"),
    [
        ("float32", "pscpu/xring", "same,bfloat16", "0", "404"),
        ("float16", "copy:100:pscpu#3", "same", "0,200", "40*5"),
    ],
)
def test_every_packing_is_right(dtype, spec, wires, buckets, sizes):
    run = Run(
        sizes=sizes,
        dtype=dtype,
        all_reduce_spec=spec,
        all_reduce_group_size=2,
        gradient_repacking=(0, 2),
        agg_small_grads_max_bytes="0,64",
        agg_small_grads_max_group=2,
        gradient_bucket_bytes=buckets,
        wire_dtype=wires,
        allreduce_merge_scope=2,
        num_batches=1,
    )
    packings = 4 * len(wires.split(",")) * len(buckets.split(","))
    record = run()
    assert len(record.points) == packings
    assert {point.wrong for point in record.points} == {0}
    packed = {str(point.packing) for point in record.points}
    assert "small64x2+packs2+scope2" in packed
    assert len(packed) == packings


def test_what_is_deferred_comes_out_a_call_later():
    record = Run(variable_consistency="relaxed", all_reduce_spec="copy,xring")()
    assert {str(point.packing) for point in record.points} == {"relaxed"}
    assert {point.wrong for point in record.points} == {0}


@pytest.mark.slow
def test_peers_are_measured_beside_specs(tmp_path):
    path, rows = tmp_path / "r.json", tmp_path / "r.csv"
    run = Run(
        sizes="52*3",
        num_gpus=(2, 4),
        peers="reduction_to_one_device,hierarchical_copy_all_reduce",
        gradient_repacking=(0, 2),
        result_json=str(path),
        result_csv=str(rows),
    )
    record = run()
    # Whatever packing the specs get, peers get the tensors as they are, once.
    assert [point.spec for point in record.points] == ["copy"] * 4
    assert [point.spec for point in record.peers] == [
        "reduction_to_one_device",
        "hierarchical_copy_all_reduce",
    ] * 2
    assert {str(point.packing) for point in record.peers} == {"-"}
    assert all(point.wrong == 0 and point.checked for point in record.rows)
    assert AllReduceRecord.from_json(path.read_bytes()) == record
    with rows.open(newline="") as file:
        assert sum(one["peer"] == "true" for one in csv.DictReader(file)) == 4
    assert len(run.rows) == 8


def test_gradients_of_a_model_and_a_spec_without_its_second_level():
    run = Run(sizes=None, model="lenet", all_reduce_spec="copy/xring", num_gpus=(2,))
    (point,) = run().points
    assert (point.workload, point.tensors) == ("lenet", 8)
    assert point.bytes == 4 * point.elements > 1_000_000
    assert "# copy/xring is copy on 2 devices: there is no other level" in run.comments


def test_build_times_alone():
    run = Run(build_only=True, num_gpus=(2, 3), sizes="64*2,64*4")
    record = run()
    assert record.copies == ()
    assert [(p.devices, p.tensors) for p in record.points] == [(2, 2), (2, 4), (3, 2), (3, 4)]
    for point in record.points:
        assert point.seconds == ()
        assert 0 < point.trace_seconds < point.build_seconds
    assert record.points[3].operations > record.points[0].operations
    assert record.config["iters_per_step"] == 1
    assert [row[7] for row in run.rows] == ["4", "8", "6", "12"]


def test_chained_reductions_follow_one_another(algorithm):
    """The n-th reduction of a call begins after the sums of the one before are there."""
    events = []

    def note(what):
        events.append(what)
        return 0.0

    def noting(tensors, devices, index):
        number = len(built)
        built.append(number)
        sums = []
        for device in devices:
            with tf.device(device), tf.control_dependencies(list(tensors)):
                begin = tf.numpy_function(lambda n=number: note(("begin", n)), [], tf.double)
            with tf.device(device), tf.control_dependencies([begin]):
                own = tf.add_n(list(tensors))
            with tf.device(device), tf.control_dependencies([own]):
                end = tf.numpy_function(lambda n=number: note(("end", n)), [], tf.double)
            with tf.device(device), tf.control_dependencies([end]):
                sums.append(tf.identity(own))
        return sums

    built = []
    algorithm("noting", noting)
    record = Run(all_reduce_spec="noting", num_gpus=(2,), iters_per_step=3)()
    assert record.points[0].wrong == 0
    assert built == [0, 1, 2]
    # Build, two checks, a warm-up and two timed calls; on two devices each.
    assert len(events) == 6 * 3 * 2 * 2
    for call in range(6):
        part = events[12 * call : 12 * (call + 1)]
        assert [n for _, n in part] == [0] * 4 + [1] * 4 + [2] * 4


def test_rows_of_a_size_are_interleaved(algorithm):
    calls = []

    def counted(name):
        def function(tensors, devices, index):
            with tf.device(devices[0]), tf.control_dependencies(list(tensors)):
                count = tf.numpy_function(lambda: calls.append(name) or 0.0, [], tf.double)
            with tf.device(devices[0]), tf.control_dependencies([count]):
                return [tf.add_n(list(tensors))] * len(devices)

        return function

    for name in ("a", "b", "c"):
        algorithm(name, counted(name))
    Run(all_reduce_spec="a,b,c", iters_per_step=1, num_warmup_batches=0, num_batches=20)()
    timed = calls[-60:]
    rounds = [tuple(timed[i : i + 3]) for i in range(0, 60, 3)]
    assert {tuple(sorted(order)) for order in rounds} == {("a", "b", "c")}
    assert len(set(rounds)) > 3


@pytest.mark.slow
def test_what_was_measured_survives_an_interruption(algorithm, tmp_path):
    path, rows = tmp_path / "r.json", tmp_path / "r.csv"
    seen = []

    def interrupting(tensors):
        if path.exists():
            seen.append(json.loads(path.read_text()))
        if tensors[0].shape.num_elements() == 64:
            raise KeyboardInterrupt
        return total(tensors)

    algorithm("interrupting", on_first(interrupting))
    run = Run(
        sizes="64,128,256",
        all_reduce_spec="copy,interrupting",
        result_json=str(path),
        result_csv=str(rows),
    )
    with pytest.raises(KeyboardInterrupt):
        run()
    # The document is replaced after every size.
    assert {document["status"] for document in seen} == {"interrupted"}
    assert {len(document["points"]) for document in seen} == {2, 4}
    record = AllReduceRecord.from_json(path.read_bytes())
    assert record.status == "interrupted"
    pairs = [(spec, size) for size in (64, 128) for spec in ("copy", "interrupting")]
    assert [(p.spec, p.bytes) for p in record.points] == pairs
    assert all(len(point.seconds) == 2 for point in record.points)
    assert len(rows.read_text().splitlines()) == 5


def test_the_record_is_written_before_a_wait_for_the_other_processes(tmp_path, monkeypatch):
    def waits(membership, code, reason=""):
        raise KeyboardInterrupt

    monkeypatch.setattr(JobMembership, "report_run_end", waits)
    path = tmp_path / "record.json"
    with pytest.raises(KeyboardInterrupt):
        Run(result_json=str(path))()
    assert AllReduceRecord.from_json(path.read_text()).status == "ok"


def test_a_copy_that_fails_costs_only_its_row(monkeypatch):
    calls, copy_all = [], program.copy_all

    def failing(tensors):
        calls.append(tensors)
        if len(calls) > 1:  # the first one warms the devices up
            raise RuntimeError("no copy")
        return copy_all(tensors)

    monkeypatch.setattr(program, "copy_all", failing)
    run = Run()
    record = run()
    assert "# memory copy: RuntimeError: no copy" in run.comments
    assert (record.status, record.copies) == ("ok", ())
    assert [(point.spec, len(point.seconds)) for point in record.points] == [("copy", 2)]


@pytest.mark.parametrize("error", [None, BenchmarkError("the process was killed")])
def test_the_record_of_a_process_that_ends_early_keeps_what_it_wrote(tmp_path, error):
    path = tmp_path / "r.json"
    run = Run(result_json=str(path))
    status = "interrupted" if error is None else "failed"
    run.bench.write_early_end_record(error)
    early = AllReduceRecord.from_json(path.read_bytes())
    assert (early.status, early.points) == (status, ())
    assert (early.error is None) == (error is None)
    record = run()
    assert [len(point.seconds) for point in record.points] == [2]
    run.bench.write_early_end_record(error)
    assert AllReduceRecord.from_json(path.read_bytes()) == record  # which was complete


@pytest.mark.slow
def test_what_spoils_a_measurement_is_said_and_recorded(monkeypatch, limits, tmp_path):
    monkeypatch.setattr(checks, "_others_busy_text", lambda situation: "1.9 of 2 CPUs busy")
    limits(table, IMPLAUSIBLE_SHARE=0.0)
    path = tmp_path / "r.json"
    run = Run(result_json=str(path), all_reduce_spec="copy,xring")
    record = run()
    assert record.conditions is not None
    assert {note.when for note in record.conditions.notes if note.id == "load"} >= {"during"}
    said = run.err.getvalue()
    assert "1.9 of 2 CPUs busy" in said
    assert re.search(
        r"xring - on 64 bytes and 3 devices: \d+ times as fast as the memory-copy estimate", said
    )
    quiet = Run(quiet_conditions="load")
    assert quiet().conditions is not None
    assert "CPUs busy" not in quiet.err.getvalue()
    assert any(line.startswith("# Fastest of 64 B on 3 devices: ") for line in run.comments)
    assert AllReduceRecord.from_json(path.read_bytes()).conditions == record.conditions
    # 2 calls have a longest, and no 99th percentile.
    assert any(" max " in line for line in run.comments)
    assert not any("p99" in line for line in run.comments)


@pytest.mark.parametrize("local", ["cpu", "gpu"])
def test_an_algorithm_gets_the_devices_and_where_to_add(monkeypatch, local):
    contexts = []

    def factory(context):
        contexts.append(context)
        return lambda tensors, index: on_first(total)(tensors, context.devices, index)

    factory.__module__ = "cnnbench.own"
    own = registry.Registration(name="own", factory=factory)
    monkeypatch.setitem(registry.ALGORITHMS, "own", own)
    run = Run(all_reduce_spec="own", num_gpus=(2, 3), local_parameter_device=local, verbose=True)
    record = run()
    assert [point.devices for point in record.points] == [2, 3]
    assert {len(context.devices) for context in contexts} == {2, 3}
    measured = contexts[-1]
    assert (measured.cpu_device is not None) == (local == "cpu")
    assert (measured.own, measured.shared_cards) == (None, False)
    assert sum(line.startswith("# build: own ") for line in run.comments) == 2
    assert [len(row) for row in run.rows] == [13, 13]
    assert "None" not in run.err.getvalue()
    assert not any(line.startswith("# own is ") for line in run.comments)
