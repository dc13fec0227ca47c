"""--trace_file and --tfprof_file.

Tests cnnbench/run/driver/observers/profiles.py, cnnbench/run/observe/operations.py and
cnnbench/run/observe/messages.py.
"""

import gzip
import json
import re

import pytest
from covering import slow_if
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from cnnbench.records.files import KINDS, is_replaceable
from cnnbench.run.observe.operations import (
    ExecutedOperation,
    TimePriority,
    operation_table,
    read_profile,
    sorted_operations,
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
      stats { metadata_id: 4 int64_value: -1 }
      stats { metadata_id: 5 double_value: 0.5 }
    }
    events {
      metadata_id: 1 offset_ps: 9 duration_ps: 1000000
      stats { metadata_id: 3 str_value: "tower_0/relu/Relu:Relu::sub#id=3#" }
    }
    events { metadata_id: 2 duration_ps: 8 }
  }
  event_metadata { key: 1 value { id: 1 name: "some_kernel" } }
  event_metadata { key: 2 value { id: 2 name: "MemcpyH2D" } }
  stat_metadata { key: 1 value { id: 1 name: "tf_op" } }
  stat_metadata { key: 2 value { id: 2 name: "tower_0/conv0/Conv2D:Conv2D" } }
  stat_metadata { key: 3 value { id: 3 name: "kernel_annotation" } }
  stat_metadata { key: 4 value { id: 4 name: "balance" } }
  stat_metadata { key: 5 value { id: 5 name: "occupancy" } }
}
planes { name: "empty" }
"""


@pytest.fixture
def gpu_step():
    """A profile of a GPU as the profiler writes it, made with TensorFlow's own class."""
    from google.protobuf import text_format

    return text_format.Parse(GPU_STEP, xplane_pb2.XSpace()).SerializeToString()


def test_a_profile_is_read_as_tensorflow_wrote_it(gpu_step):
    host, gpu = read_profile(gpu_step)
    assert (host.name, gpu.name) == ("/host:CPU", "/device:GPU:0")
    (stream,) = gpu.lines
    name, (first, *_) = stream
    assert (name, first.name) == ("Stream #13", "some_kernel")
    assert (first.start, first.duration) == (2003, 4_000_000)
    assert first.stats == {"tf_op": "tower_0/conv0/Conv2D:Conv2D", "balance": -1, "occupancy": 0.5}


def test_kernels_of_gpus_count_and_launches_do_not(gpu_step):
    ran = sorted_operations(read_profile(gpu_step), lambda name: True)
    assert {(one.name, one.type, one.end - one.start) for one in ran} == {
        ("tower_0/conv0/Conv2D", "Conv2D", 4_000_000),
        ("tower_0/relu/Relu", "Relu", 1_000_000),
    }


def test_the_table_sums_by_type_and_by_name():
    ran = [  # at the same time
        ExecutedOperation(name, type, "/host:CPU", 0, milliseconds * 10**9, TimePriority.COMPUTES)
        for name, type, milliseconds in (
            *(("a", "Conv", 3), ("b", "Conv", 2)),
            *(("a", "Conv", 3), ("c", "Relu", 2)),
        )
    ]
    lines = operation_table(ran, "what").splitlines()
    rows = [line.split() for line in lines]
    assert lines[0] == "what"
    assert ["Conv", "8.000", "80.0", "%", "3"] in rows
    assert ["a:Conv", "6.000", "60.0", "%", "2"] in rows
    assert rows.index(["a:Conv", "6.000", "60.0", "%", "2"]) < rows.index(
        ["b:Conv", "2.000", "20.0", "%", "1"]
    )


@pytest.mark.parametrize("name", slow_if(["trace.json"], ["trace.json", "trace.json.gz"]))
def test_a_chrome_trace_holds_the_step(run, tmp_path, name):
    path = tmp_path / name
    out, err = run("--num_gpus=2", f"--trace_file={path}")
    assert "total images/sec" in out
    assert "profiler" not in err.lower()
    content = path.read_bytes()
    assert is_replaceable(path, KINDS["trace"])
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
    run(*shared, f"--tfprof_file={tmp_path / 'top'}")
    (path,) = folder.glob("plugins/profile/*/*.xplane.pb")
    space = xplane_pb2.XSpace.FromString(path.read_bytes())
    names = {m.name for plane in space.planes for m in plane.event_metadata.values()}
    assert any(PRODUCT.fullmatch(name.removeprefix("tower_0/affine0/")) for name in names)
    ours = {e.name for p in read_profile(path.read_bytes()) for _, line in p.lines for e in line}
    assert ours <= names
    assert len(ours) > 20
    assert "tower_0/affine0/" in (tmp_path / "top").read_text()


@pytest.mark.parametrize(("warm_up", "profiled"), slow_if([(1, 1)], [(1, 1), (5, 4)]))
def test_the_profiled_step_is_marked_with_its_number(run, tmp_path, warm_up, profiled):
    flags = f"--trace_file={tmp_path}", "--nouse_chrome_trace_format"
    run(*flags, f"--num_warmup_batches={warm_up}")
    (path,) = tmp_path.glob("plugins/profile/*/*.xplane.pb")
    events = [e for p in read_profile(path.read_bytes()) for _, line in p.lines for e in line]
    # TensorBoard recognizes a step by this name and the root mark.
    (mark,) = [e for e in events if e.name == "train"]
    assert (mark.stats["step_num"], mark.stats["_r"]) == (profiled, 1)
    ran = [e for e in events if e.name.startswith("tower_0/")]
    assert ran
    assert mark.start <= min(e.start for e in ran)
    assert max(e.start + e.duration for e in ran) <= mark.start + mark.duration


def test_the_top_operations_are_a_table(run, tmp_path):
    path = tmp_path / "operations.txt"
    run("--forward_only", f"--tfprof_file={path}")
    text = path.read_text()
    assert is_replaceable(path, KINDS["table of operations"])
    assert text.startswith("operations of warm-up step 1 of trivial, 2 images per device\n")
    head, _, single = text.partition("the 20 longest operations")
    shares = [float(share) for share in re.findall(r"([\d.]+) %", head)]
    assert sum(shares) == pytest.approx(100, abs=2)
    assert shares == sorted(shares, reverse=True)
    assert re.search(r"^tower_0/affine1/\w+:\w*MatMul ", single, re.MULTILINE)
    assert "gradient_tape" not in single


def test_a_failed_step_leaves_no_profiler_behind(run, tmp_path):
    path = tmp_path / "trace.json"
    flags = {"init_learning_rate": 1e30, "weight_decay": 1, "num_warmup_batches": 4}
    run(f"--trace_file={path}", code=4, **flags)
    assert not path.exists()
    run(f"--trace_file={path}")
    assert path.exists()
