"""Prefixes that launchers and collectors of logs write before each line."""

from __future__ import annotations

import pytest
from imports import TRAINING, read

from cnnbench.records.launchers import lines_of_processes
from cnnbench.records.metrics.figures import throughput

NOISE = """\
2019-03-01 10:00:00.123456: I tensorflow/core/gpu_device.cc:1115] Created TensorFlow device \
(/job:localhost/replica:0/task:0/device:GPU:0 with 14 MB memory) -> physical GPU (device: 0, \
name: Tesla V100-SXM2-16GB, pci bus id: 0000:00:1e.0, compute capability: 7.0)
WARNING:tensorflow:From /usr/lib/python3/x.py:12: Supervisor is deprecated.
Instructions for updating:
  Please switch to tf.train.MonitoredTrainingSession
I0301 10:00:01.123456 139 tf_logging.py:115] Running local_init_op.
cnnbench: the machine is busy
[worker:0] cnnbench: warning: the machine is busy
"""


LAUNCHERS = {
    "mpirun --tag-output": "[1,{rank}]<stdout>:",
    "Open MPI 5": "[prterun-host-4711@1,{rank}]<stdout>: ",
    "Open MPI 5 with times": "Thu May  7 10:00:{s:02} 2026 [host:1,{rank}]<stdout>: ",
    "horovodrun": "[{rank}]<stdout>:",
    "horovodrun with times": "Thu May  7 10:00:{s:02} 2026[{rank}]<stdout>:",
    "srun --label": "{rank:>2}: ",
    "torchrun": "[default{rank}]:",
    "kubectl": "2026-05-07T10:00:{s:02}.{s:09}Z ",
    "kubectl, another zone": "2026-05-07T10:00:{s:02}.5+05:30 ",
    "kubectl --prefix": "[pod/job-worker-{rank}/main] ",
    "kubectl --prefix --timestamps": "[pod/job-{rank}/main] 2026-05-07T10:00:{s:02}.5-07:00 ",
    "launcher of an operator": "[pod/job-launcher-x7k/m] 2026-05-07T10:00:01Z [1,{rank}]<stdout>:",
    "docker compose": "train-{rank}  | ",
    "docker compose, colours": "\x1b[36mtrain-{rank}   |\x1b[0m ",
    "parallel --tag": "{rank}\t",
    "parallel --tag, several words": "--model=lenet {rank}\t",
    "ts": "May 07 10:00:{s:02} ",
    "ts %.s": "1778140800.{s:06} ",
    "ts with a date": "[2026-05-07 10:00:{s:02}] ",
}


def tagged(prefix, text):
    """A log with this prefix, of three processes if the prefix has a rank, and the ranks."""
    ranks = range(8, 11) if "{rank" in prefix else (0,)
    lines = [
        prefix.format(rank=rank, s=second) + line + "\n"
        for second, line in enumerate((NOISE + text).splitlines())
        for rank in ranks
    ]
    return "".join(lines), ranks


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_prefixes_of_launchers(tmp_path, launcher):
    prefix = LAUNCHERS[launcher]
    log, ranks = tagged(prefix, TRAINING)
    records, reasons = read(tmp_path, log)
    assert reasons == []
    assert [one.status for one in records] == ["ok"] * len(ranks)
    assert {throughput(one) for one in records} == {706.17}
    assert {one.batch.global_ for one in records} == {8}
    times = {one.started_at for one in records}
    zones = ("Z ", "+05:30 ", "-07:00 ")
    if prefix.endswith(zones):
        assert {time[:16] for time in times} == {"2026-05-07T10:00"}


def found(text, known="speed: "):
    processes = lines_of_processes(text.rstrip("\n"), known)
    return [([line for _, line in lines], time) for lines, time in processes]


def test_lines_of_processes_are_told_apart_by_what_is_no_time():
    text = "".join(
        f"2026-05-07T10:00:0{rank}Z [{rank}]<{stream}>: {line}\n"
        for line, stream in (("speed: 1", "stdout"), ("  note", "stderr"), ("speed: 2", "stdout"))
        for rank in (1, 2)
    )
    lines = ["speed: 1", "  note", "speed: 2"]
    assert found(text) == [(lines, "2026-05-07T10:00:01Z"), (lines, "2026-05-07T10:00:02Z")]


def test_lines_keep_their_numbers_and_spaces():
    ((lines, time),) = lines_of_processes("speed: 1\n\n  two  \nthree\r\n", "speed: ")
    assert lines == [(1, "speed: 1"), (3, "  two"), (4, "three")]
    assert time == ""


@pytest.mark.parametrize(
    ("prefix", "time"),
    [
        ("2026-05-07T10:00:01.5+05:30 ", "2026-05-07T10:00:01.5+05:30"),
        ("2026-05-07 10:00:01,5 ", "2026-05-07T10:00:01.5"),
        ("Thu May  7 10:00:01 2026 [host:1,0]<stdout>: ", "2026-05-07T10:00:01"),
        ("[2026-05-07 10:00:01] 2026-05-07T04:30:01Z ", "2026-05-07T04:30:01Z"),
        ("1778148001.5 ", "2026-05-07T10:00:01.500000+00:00"),
        ("Thu May  7 10:00:01 ", ""),
        ("10:00:01 ", ""),
        ("0: ", ""),
    ],
)
def test_the_date_of_a_prefix_is_the_time_of_its_process(prefix, time):
    assert found(f"{prefix}speed: 1\n") == [(["speed: 1"], time)]


def test_messages_of_tensorflow_have_dates():
    message = "2026-05-07 10:00:01.5: I tensorflow/core: x\n"
    assert found(f"WARNING:tensorflow: old\n{message}speed: 1\n")[0][1] == "2026-05-07T10:00:01.5"
    assert found(f"0: {message}0: speed: 1\n")[0][1] == "2026-05-07T10:00:01.5"
    assert found("cnnbench: 2026-05-07 10:00:01 is late\nspeed: 1\n")[0][1] == ""


def test_a_text_before_a_known_line_that_does_not_end_as_a_prefix_is_part_of_it():
    assert found("the speed: 1\nthe end\n") == [(["the speed: 1", "the end"], "")]


def test_messages_of_libraries_and_what_is_indented_behind_them_are_left_out():
    text = "speed: 1\nWARNING:tensorflow: old\n  use the new one\n  or not\nspeed: 2\n  note\n"
    assert found(text) == [(["speed: 1", "speed: 2", "  note"], "")]


def test_hundreds_of_pods_have_names_of_one_shape():
    text = "".join(f"[{chr(97 + n % 26) * (n // 26 + 1)}] speed: {n}\n" for n in range(104))
    assert [lines for lines, _ in found(text)] == [[f"speed: {n}"] for n in range(104)]
