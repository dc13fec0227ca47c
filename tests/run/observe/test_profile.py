"""--trace_file, and the operations in a profile.

Tests cnnbench/run/driver/observers/profiles.py, cnnbench/run/observe/operations.py and
cnnbench/run/observe/messages.py.
"""

import gzip
import json
import re

import pytest
import tensorflow as tf
from covering import slow_if
from google.protobuf import text_format
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from cnnbench.run.observe.operations import (
    ExecutedOperation,
    TimePriority,
    XEvent,
    XPlane,
    count_allocations,
    divide_wall_time_of_step,
    is_collective,
    is_transfer,
    read_profile,
    sorted_operations,
    source_operation_name,
)

PRODUCT = re.compile(r"[\w/]+:\w*MatMul")
"""What remains of an affine layer's name; the optimizer joins bias and ReLU to the product."""

GPU_STEP = """
planes {
  name: "/host:CPU"
  lines {
    id: 1 name: "tf_Compute"
    events { metadata_id: 1 duration_ps: 5 }
  }
  event_metadata { key: 1 value { id: 1 name: "tower_0/conv0/Conv2D:Conv2D" } }
}
planes {
  name: "/device:GPU:0"
  lines {
    id: 7 name: "13" display_name: "Stream #13" timestamp_ns: 2
    events {
      metadata_id: 1 offset_ps: 3 duration_ps: 4000000
      stats { metadata_id: 1 ref_value: 2 }
      stats { metadata_id: 3 str_value: "tower_0/relu/Relu:Relu::sub#id=3#" }
      stats { metadata_id: 4 int64_value: -1 }
      stats { metadata_id: 5 double_value: 0.5 }
    }
  }
  event_metadata { key: 1 value { id: 1 name: "some_kernel" } }
  stat_metadata { key: 1 value { id: 1 name: "tf_op" } }
  stat_metadata { key: 2 value { id: 2 name: "tower_0/conv0/Conv2D:Conv2D" } }
  stat_metadata { key: 3 value { id: 3 name: "kernel_annotation" } }
  stat_metadata { key: 4 value { id: 4 name: "balance" } }
  stat_metadata { key: 5 value { id: 5 name: "occupancy" } }
}
planes { name: "empty" }
"""


def test_a_profile_is_read_as_tensorflow_wrote_it():
    """Made with TensorFlow's own class."""
    written = text_format.Parse(GPU_STEP, xplane_pb2.XSpace()).SerializeToString()
    host, gpu = read_profile(written)
    assert (host.name, gpu.name) == ("/host:CPU", "/device:GPU:0")
    (stream,) = gpu.lines
    name, (kernel,) = stream
    assert (name, kernel.name) == ("Stream #13", "some_kernel")
    assert (kernel.start, kernel.duration) == (2003, 4_000_000)
    assert kernel.stats == {
        **{"tf_op": "tower_0/conv0/Conv2D:Conv2D", "balance": -1, "occupancy": 0.5},
        "kernel_annotation": "tower_0/relu/Relu:Relu::sub#id=3#",
    }


def host_plane(*events):
    """A plane of the host with one thread; each event is (name, start, duration)."""
    return XPlane("/host:CPU", (("thread", tuple(XEvent(*event) for event in events)),))


def test_operations_begin_with_the_first_and_have_priorities():
    plane = host_plane(
        ("own/MatMul:MatMul", 107, 3),
        ("no operation", 90, 50),
        ("own/x/_3:_HostRecv", 105, 0),
        ("input/Decode:DecodeJpeg", 100, 2),
        ("own/sum:CollectiveReduceV2", 106, 9),
    )
    ran = sorted_operations([plane, XPlane("other", ())], lambda name: name.startswith("own"))
    cpu, waits = "/host:CPU", TimePriority.WAITS
    assert ran == [
        ("input/Decode", "DecodeJpeg", cpu, 0, 2, TimePriority.OTHER),
        ("own/x/_3", "_HostRecv", cpu, 5, 5, waits),
        ("own/sum", "CollectiveReduceV2", cpu, 6, 15, waits),
        ("own/MatMul", "MatMul", cpu, 7, 10, TimePriority.COMPUTES),
    ]
    assert [one.is_of_step for one in ran] == [False, True, True, True]
    assert sorted_operations([], lambda name: True) == []


def test_kernels_are_named_by_what_launched_them():
    def kernel(start, **stats):
        return XEvent("kernel", start, 1, stats)

    events = (
        kernel(0, tf_op="a/MatMul:MatMul"),
        kernel(1, tf_op="no operation", kernel_annotation="b/Relu:Relu::more"),
        kernel(2, tf_op="c/_7:_Recv"),
        kernel(3, tf_op="d/_8:_HostSend"),
        kernel(4, kernel_annotation="ncclAllReduceRing::more"),
        kernel(5, tf_op=7),
        kernel(6),
    )
    name, compute, waits = "/device:GPU:0", TimePriority.COMPUTES, TimePriority.WAITS
    beside = XPlane("/device:GPU:1", (("stream", (kernel(3, tf_op="f/Relu:Relu"),)),))
    planes = [XPlane(name, (("stream", events),)), beside, host_plane(("e:E", 0, 1))]
    ran = sorted_operations(planes, lambda name: "/" in name)
    assert ran == [
        ("a/MatMul", "MatMul", name, 0, 1, compute),
        ("b/Relu", "Relu", name, 1, 2, compute),
        ("c/_7", "_Send", name, 2, 3, waits),
        ("d/_8", "_HostSend", name, 3, 4, waits),
        ("f/Relu", "Relu", "/device:GPU:1", 3, 4, compute),
        # NCCL's kernels belong to the step, whatever their names.
        ("ncclAllReduceRing", "NcclAllReduceRing", name, 4, 5, waits),
    ]


@pytest.mark.parametrize(
    ("type", "collective", "transfer"),
    [
        ("CollectiveReduceV2", True, False),
        ("_NcclReduceSend", True, False),
        ("NcclAllReduce", True, False),
        ("MyCollective", False, False),
        ("_Send", False, True),
        ("_HostRecv", False, True),
        ("_SendX", False, False),
        ("Send", False, False),
        ("MatMul", False, False),
    ],
)
def test_what_exchanges_and_what_copies(type, collective, transfer):
    assert (is_collective(type), is_transfer(type)) == (collective, transfer)


def test_a_copy_bears_the_name_of_its_source():
    names = ["a/b/_12", "a/b_12", "a/_12/b"]
    assert [*map(source_operation_name, names)] == ["a/b", "a/b_12", "a/_12/b"]


def executed(name, start, end, priority=TimePriority.COMPUTES):
    """An execution between two seconds."""
    moments = (int(moment * 1e12) for moment in (start, end))
    return ExecutedOperation(name, name.upper(), "/host:CPU", *moments, priority)


def test_the_wall_time_of_a_step_is_divided_by_priority():
    waits, other = TimePriority.WAITS, TimePriority.OTHER
    runs = [
        executed("decode", 0, 5, other),  # 1 to 2 is before the step
        executed("a", 2, 6),
        executed("b", 4, 6),  # shares 4 to 6 with a
        executed("copy", 5, 9, waits),  # has 6 to 9
        executed("decode", 8, 11, other),  # has 9 to 11
        executed("point", 3, 3),
        executed("a", 12, 13),  # idle before it
        executed("decode", 12.5, 20, other),
    ]
    divided = divide_wall_time_of_step(runs)
    assert divided.seconds == pytest.approx(
        {("a", "A"): 4, ("b", "B"): 1, ("copy", "COPY"): 3, ("point", "POINT"): 0}
    )
    assert divided.other_seconds == pytest.approx(2)
    assert divided.idle_seconds == pytest.approx(1)
    assert divided.counts == {
        ("a", "A"): 2,
        ("b", "B"): 1,
        ("copy", "COPY"): 1,
        ("point", "POINT"): 1,
    }
    assert divide_wall_time_of_step([]) == ({}, 0, 0, {})


def test_allocations_are_counted_where_their_size_is_known():
    def event(name, **stats):
        return XEvent(name, 0, 0, stats)

    lines = (
        ("a", (event("MemoryAllocation", requested_bytes=3), event("Other", requested_bytes=50))),
        ("b", (event("MemoryAllocation", requested_bytes=4), event("MemoryAllocation"))),
    )
    planes = [XPlane("cpu", lines), XPlane("gpu", lines[:1])]
    assert count_allocations(planes) == (3, 10)
    assert count_allocations(planes[:0]) is None


@pytest.mark.parametrize("name", slow_if(["trace.json"], ["trace.json", "trace.json.gz"]))
def test_a_chrome_trace_holds_the_step(run, tmp_path, name):
    path = tmp_path / name
    out, err = run("--num_gpus=2", f"--trace_file={path}", "--num_warmup_batches=1")
    assert "total images/sec" in out
    assert "profiler" not in err.lower()
    content = path.read_bytes()
    trace = json.loads(gzip.decompress(content) if name.endswith(".gz") else content)
    assert trace["otherData"]["step"].startswith("warm-up step 1 of trivial")
    done = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    for scope in ("tower_0/affine0/", "tower_1/affine1/", "gradient_tape/tower_0/affine0/"):
        assert any(PRODUCT.fullmatch(event["name"].removeprefix(scope)) for event in done)
    assert min(event["ts"] for event in done) >= 0
    assert all(event["dur"] > 0 for event in done)
    # One step: each operation of the graph ran once.
    (loss,) = [e for e in done if re.match(r"tower_0/Sparse\w+/Sparse\w+:", e["name"])]
    threads = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in trace["traceEvents"] if "M" in e["ph"]
    }
    assert threads[loss["pid"], loss["tid"]].startswith("tf_Compute")


def test_a_folder_for_tensorboard(run, tmp_path):
    folder = tmp_path / "profile"
    # One --logdir may show the profile and what lies beside the checkpoints.
    shared = [f"--trace_file={folder}", f"--train_dir={folder}", "--nouse_chrome_trace_format"]
    run(*shared, "--num_warmup_batches=3")
    (path,) = folder.glob("plugins/profile/*/*.xplane.pb")
    space = xplane_pb2.XSpace.FromString(path.read_bytes())
    names = {m.name for plane in space.planes for m in plane.event_metadata.values()}
    assert any(PRODUCT.fullmatch(name.removeprefix("tower_0/affine0/")) for name in names)
    events = [e for p in read_profile(path.read_bytes()) for _, line in p.lines for e in line]
    ours = {event.name for event in events}
    assert ours <= names
    assert len(ours) > 20
    # TensorBoard recognizes a step by this name and the root mark.
    (mark,) = [e for e in events if e.name == "train"]
    assert (mark.stats["step_num"], mark.stats["_r"]) == (2, 1)
    ran = [e for e in events if e.name.startswith("tower_0/")]
    assert ran
    assert mark.start <= min(e.start for e in ran)
    assert max(e.start + e.duration for e in ran) <= mark.start + mark.duration


def test_a_failed_step_leaves_no_profiler_behind(run, tmp_path):
    path = tmp_path / "trace.json"
    flags = {"init_learning_rate": 1e30, "weight_decay": 1, "num_warmup_batches": 4}
    run(f"--trace_file={path}", code=4, **flags)
    assert not path.exists()
    tf.profiler.experimental.start(str(tmp_path))  # fails beside another profiler
    tf.profiler.experimental.stop(save=False)
