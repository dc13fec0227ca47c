"""scripts/compare_peers from the command line, with a stand-in for all that it measures."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import compare_peers
import pytest
from command_line import parse_options
from peers import readings
from peers.process import Line, Process
from peers.readings import COLUMNS, Reading
from peers.scenarios import SCENARIOS, Options, demands_of, scenario_subjects

from cnnbench.records.all_reduce import AllReduceRecord, Point
from cnnbench.variable_mgr.packing import Packing

pytestmark = pytest.mark.slow

# As python and as cnnbench. SAY holds what goes wrong: "silent", "sick", or words of a command line
# after "fail" or "interrupt".
STAND_IN = """#!{python} -IS
import json, os, signal, sys, time
words = sys.argv[1:]
flags = dict(word.lstrip("-").partition("=")[::2] for word in words)
say, _, about = os.environ.get("SAY", "").partition(" ")
if words[0] == "-c":
    print("torch" * ("torch" in words))
    sys.exit()
if about and about in words:
    if say == "fail":
        sys.exit("first\\n\\nlast ")
    while True:  # a signal just before the parent waits is heard after it
        time.sleep(0.5)
        os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(20)
if words[0].endswith("photos.py"):
    os.mkdir(words[1])
    sys.exit()
if "--batch_size=-1" in words:
    sys.exit(2)
if say == "silent" or "--help" in words:
    sys.exit()
batch = int(flags.get("batch_size", 8)) * int(flags.get("num_gpus", 1))
if words[0].endswith("matmul.py"):
    measured = {{"flops_per_sec": 40e9}}
elif words[0].endswith("build.py"):
    ours = "--program=cnnbench" in words
    copies = {{way + unit: 4e6 for way in ("htod", "dtoh", "dtod") for unit in ("", "_bytes")}}
    times = {{"kernels": 7, "cpu": 0.1 if ours else 0.2, "wall": 0.5, "idle": 0.25}}
    measured = {{**copies, **times}}
else:
    measured = {{"batch": batch, "step_seconds": [0.25, 0.5, 2.0], "versions": "bare 1"}}
    if words[0].endswith("bare_loop.py"):
        measured["bare_steps_per_sec"] = 2.0
if words[0].endswith(".py"):
    print("chatter", "MEASURED " + json.dumps(measured), "bye", sep="\\n")
    sys.exit()
for step in range(1, 4):
    print(f"{{step}}\\timages/sec: 1", flush=True)
    if "--num_batches=3" in words:
        time.sleep(0.1)  # until its memory is read
record = {{
    "schema": 1,
    "status": "failed" if say == "sick" else "ok",
    "batch": {{"global": batch}},
    "step_seconds": [0.25, 0.25, 1.0],
    "model": {{"training_flops_per_image": 1e9, "forward_flops_per_image": 2e9}},
    "config": {{"forward_only": "forward_only" in flags}},
    "environment": {{"tensorflow_version": "2.21.0"}},
    "measured": {{"loop_seconds": 3.0}},
}}
if "result_json" in flags:
    with open(flags["result_json"], "w") as file:
        file.write({reductions!r} if words[0] == "allreduce" else json.dumps(record))
"""


def row(spec, *seconds, size=16 << 20, packs=0, devices=4, **more):
    own = {"workload": "x", "dtype": "float32", "tensors": 1, "elements": size // 4}
    own |= {"bytes": size, "packing": Packing(gradient_repacking=packs)}
    return Point(spec=spec, devices=devices, seconds=seconds, **own, **more)


@pytest.fixture
def peers(tmp_path, monkeypatch, make_reductions, capsys):
    """peers("--scenarios=towers", say=""): exit status, lines of the report, and of the progress.

    PyTorch is not installed, and the interpreter of Keras does not exist.
    """
    points = [row("xring", 4.0), row("xring", 1.0, packs=1), row("copy", 4.0)]
    text = STAND_IN.format(python=sys.executable, reductions=make_reductions()(*points).to_json())
    for name in ("python", "cnnbench"):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    pythons = [f"--{name}_python={tmp_path / 'python'}" for name in ("cnnbench", "torch")]

    def run(*argv, say=""):
        monkeypatch.setenv("SAY", say)
        status = compare_peers.main([*pythons, "--keras_python=/no/python", *argv])
        out, err = capsys.readouterr()
        return status, [" ".join(line.split()) for line in out.splitlines()], err.splitlines()

    return run


def test_every_kind_of_program(peers, tmp_path):
    scenarios = "resnet50,forward,strategies,input,overhead,startup,memory,small,host"
    file, keep = tmp_path / "all.csv", tmp_path / "kept"
    keep.mkdir()
    status, lines, progress = peers(
        *(f"--scenarios={scenarios}", "--rounds=2", f"--csv={file}", f"--keep={keep}"),
        *("--memory_batches=3", "--devices=4", f"--ancestor={tmp_path}"),
    )
    assert status == 0
    text = "\n".join(lines)
    found = set(lines)
    none = f"there is no tf_cnn_benchmarks.py in --ancestor={tmp_path}"
    assert f"resnet50, ancestor fp32 not run: {none}" in found
    assert f"resnet50, torch bf16 not run: {tmp_path / 'python'} has no torch" in found
    assert "resnet50, keras fp32 not run: /no/python does not run: " in text
    # Speeds at the median step: 8 images in 0.25 s of cnnbench, in 0.5 s of others.
    for start in (
        "resnet50 cnnbench fp32 2 32.00 250.00 ms ",
        "strategies bare mirrored_strategy fp32 2 16.00 500.00 ms ",
        "input cnnbench fp32 2 64.00 1000.00 ms ",
        "input tf.data fp32 2 128.00 500.00 ms ",
    ):
        assert f"\n{start}" in text
    for end in (
        "resnet50 cnnbench fp32 / matmul fp32 0.800 0.800 .. 0.800 >= 0.85 2 MISSED",
        "resnet50 cnnbench fp32 / torch fp32 >= 1.10 0 not measured (torch fp32 not run: "
        f"{tmp_path / 'python'} has no torch)",
        "strategies replicated fp32 / mirrored_strategy fp32 1.000 1.000 .. 1.000 >= 1.00 2 met",
        "strategies mirrored_strategy fp32 / bare mirrored_strategy fp32 2.000 2.000 .. 2.000 "
        ">= 0.97 2 met",
        "input cnnbench fp32 / tf.data fp32 0.500 0.500 .. 0.500 >= 0.97 2 MISSED",
        "overhead harness / bare loop 0.545 0.545 .. 0.545 >= 0.97 2 MISSED",
        "small 1000 x 4 KiB, 4 devices: xring packed / unpacked 4.000 4.000 .. 4.000 >= 3.00 2 met",
        "small 1000 x 4 KiB, 4 devices: copy packed / unpacked >= 3.00 0 "
        "not measured (no such figure)",
        "host CPU time, cnnbench on 8 GPUs / Keras fit 0.500 0.500 .. 0.500 <= 1.00 2 met",
        "host CPU time, cnnbench on 8 GPUs / cnnbench parameter_server 1.000 1.000 .. 1.000 2",
    ):
        assert end in found
    assert "forward cnnbench fp32 2 32.00 250.00 ms" in text
    assert any(line.startswith("forward cnn") and line.endswith("64.00 GFLOP/s") for line in lines)
    copies = "4000000 (4.0 MB)"
    work = f"host Keras fit on 1 GPU 2 7 {copies} {copies} {copies} 500 0.25 200.0"
    assert work in found
    growth = "memory resident memory, last step / warm-up 1."
    assert any(line.startswith(growth) and line.endswith("<= 1.02 2 met") for line in lines)
    assert any(line.startswith("startup cnnbench --help, s 0.") for line in lines)
    assert "Versions: tensorflow 2.21.0, bare 1" in found
    assert "input: making 512 photographs" in progress
    with file.open(newline="") as rows:
        written = list(csv.DictReader(rows))
    assert tuple(written[0]) == COLUMNS
    (one,) = (w for w in written if (w["subject"], w["round"]) == ("bare mirrored_strategy", "2"))
    assert (one["status"], one["steps"], one["images_per_sec"]) == ("ok", "3", "16")
    assert (one["median_step_seconds"], one["versions"], one["seconds"]) == ("0.5", "bare 1", "")
    assert len({w["order"] for w in written if w["scenario"] == "host" and w["round"] == "1"}) == 10
    assert len(list(keep.glob("small-small-tensors-on-4-devices-fp32-*.json"))) == 2
    assert peers(f"--scenarios={scenarios}", f"--csv={file}")[0] == 2  # it exists


def test_what_fails_twice_is_not_started_again(peers):
    status, lines, progress = peers(
        *("--scenarios=towers", "--rounds=3", "--only=one tower,two replicated:fp32"),
        say="fail --num_gpus=2",
    )
    assert status == 0
    assert progress.count("  failed: exit status 1: last") == 2
    assert [line for line in lines if line.startswith("towers, ")] == [
        "towers, two replicated fp32 failed: exit status 1: last",
        "towers, two replicated fp32 not run: failed 2 times before",
    ]


@pytest.mark.parametrize(
    ("say", "reasons"),
    [
        (
            "silent",
            {
                *("it wrote no record", "it ended without a measurement"),
                "it printed no line for step 1",
                "no resident memory for steps 1 and 3: Linux is needed",
            },
        ),
        ("sick", {"the record has status 'failed', not 'ok'"}),
    ],
)
def test_output_that_is_none_of_a_measurement(peers, say, reasons):
    options = ("--scenarios=strategies,startup,memory", "--memory_batches=3", "--rounds=1")
    _, _, progress = peers(*options, say=say)
    told = {line.partition("ValueError: ")[2] for line in progress if "ValueError" in line}
    assert reasons <= told


def test_nothing_measured(peers):
    options = ("--scenarios=resnet50", "--only=ancestor")
    status, lines, _ = peers(*options)
    assert status == 4
    assert "resnet50, ancestor fp32 not run: no --ancestor=FOLDER was given" in lines
    assert peers("--scenarios=memory", "--only=nobody")[0] == 2
    status, _, progress = peers("--scenarios=input", "--rounds=1", "--timeout=0.001")
    assert status == 4
    assert progress[1].startswith("  failed: killed after ")
    status, lines, _ = peers("--scenarios=input", "--rounds=1", "--only=tf.data", "--timeout=0.001")
    assert "input, tf.data fp32 not run: there are no ImageNet files" in lines


def test_what_was_measured_before_an_interruption_is_shown(peers):
    """SIGTERM, as `timeout` sends it, ends the process under way and keeps what was measured."""
    status, lines, progress = peers(
        *("--scenarios=towers", "--rounds=1", "--only=one tower,two replicated", "--seed=5"),
        say="interrupt --num_gpus=2",
    )
    assert status == 130
    assert progress[-1] == "compare_peers: interrupted"
    assert any(line.startswith("towers one tower fp32 1 32.00") for line in lines)


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("--scenarios=resnet", "choose from resnet50"),
        ("--rounds=0", "must be at least 1"),
        ("--batch_size=5", "must be even"),
        ("--workers=3", "must be a multiple of --workers"),
        ("--devices=1", "must be at least 2"),
        ("--keep=/nowhere", "--keep needs an existing folder"),
        ("--round=1", "unknown flag --round"),
        ("resnet50", "stray argument"),
    ],
)
def test_wrong_options_are_refused(argument, said, capsys):
    with pytest.raises(SystemExit) as stopped:
        parse_options(Options, "", [argument], Options.check)
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        parse_options(Options, "", ["--help"])
    assert stopped.value.code == 0
    assert "--rounds=N" in capsys.readouterr().out


def options(*argv):
    return parse_options(Options, "", ["--cnnbench_python=/env/bin/python", *argv])


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_demands_are_of_subjects_that_exist(scenario):
    given = options(f"--scenarios={scenario}")
    keys = [subject.key for subject in scenario_subjects(scenario, given)]
    demands = demands_of(given)
    texts = [demand.text for demand in demands]
    assert len(set(keys)) == len(keys)
    assert len(set(texts)) == len(texts) > 0
    for demand in demands:
        assert set(demand.subjects) <= set(keys)


@pytest.mark.parametrize(
    ("scenario", "argv", "expected"),
    [
        (
            "densenet40",
            ("--batch_size=8",),
            {"": {"--model=densenet40_k12", "--data_name=cifar10", "--batch_size=16"}},
        ),
        ("forward", (), {"": {"--forward_only"}, "frozen": {"--freeze_when_forward_only"}}),
        (
            "input",
            ("--data_dir=/d", "--batches=2", "--warmup=1"),
            {
                "": {"--data_dir=/d", "--batch_size=64"},
                "cnnbench": {"--input_only", "--num_batches=10", "--num_warmup_batches=5"},
                "tf.data": {"--batches=10", "--warmup=5"},
            },
        ),
        (
            "coordinator",
            ("--workers=4",),
            {
                "parameter_server_strategy": {
                    *("--ps=1", "--workers=4", "--batch_size=2"),
                    "--variable_update=parameter_server_strategy",
                },
                "coordinator": {"--batch_size=8", "--workers=4", "--strategy=coordinator"},
            },
        ),
        (
            "process",
            ("--batches=20", "--warmup=2"),
            {
                "": {"--model=resnet50", "--batch_size=8"},
                "cnnbench": {"--num_batches=20", "--num_warmup_batches=2"},
                "library": {"--num_batches=20", "--conv_gradients=library"},
                "ancestor": {"--num_batches=20", "--num_warmup_batches=2"},
                "torch": {"--batches=20", "--warmup=2"},
            },
        ),
        ("host", ("--batch_size=16",), {"Keras fit on 8 GPUs": {"8", "--batch_size=16"}}),
    ],
)
def test_commands_of_a_scenario(scenario, argv, expected):
    for subject in scenario_subjects(scenario, options("--ancestor=/a", *argv)):
        assert expected.get("", set()) | expected.get(subject.name, set()) <= set(subject.command)


def test_every_peer_gets_the_same_work():
    given = options("--batches=7", "--warmup=3", "--batch_size=4", "--ancestor=/a")
    for subject in scenario_subjects("resnet50", given):
        command = set(subject.command)
        if subject.name != "matmul":
            assert {"--model=resnet50", "--batch_size=4", "--weight_decay=4e-05"} <= command
            assert command & {"--batches=7", "--num_batches=7"}
            assert command & {"--warmup=3", "--num_warmup_batches=3"}
            assert command & {"--learning_rate=0.001", "--init_learning_rate=0.001"}


@pytest.mark.parametrize(("total", "problem"), [("4.05", ""), ("40.00", "total is 40")])
def test_ancestor_steps_are_timed_by_the_arrival_of_their_lines(total, problem):
    steps = [f"{i}\timages/sec: 4.0 +/- 0.0 (jitter = 0.0)\t8.1" for i in range(1, 5)]
    texts = ("Step\tImg/sec\ttotal_loss", *steps, f"total images/sec: {total}")
    lines = [Line(2.0 * i, text) for i, text in enumerate(texts)]
    read = readings.ancestor_reader(8, "tf_cnn_benchmarks abc")
    if problem:
        with pytest.raises(ValueError, match=problem):
            read(Process(status=0, lines=lines), Path())
        return
    reading = read(Process(status=0, lines=lines), Path())
    assert reading == Reading(8, (2.0, 2.0, 2.0), versions="tf_cnn_benchmarks abc")
    with pytest.raises(ValueError, match="1 step lines and 0 totals"):
        read(Process(status=0, lines=lines[:2]), Path())


def test_a_reading_at_two_steps_and_of_a_start():
    lines = [
        *(Line(0.5, "x"), Line(1.0, "1\timages/sec: 3", 100)),
        Line(2.0, "50\timages/sec: 3", 104),
    ]
    ended = Process(status=0, seconds=9.0, lines=lines)
    assert readings.memory_reader(1, 50)(ended, Path()).memory_growth == 1.04
    assert readings.read_first_step(ended, Path()).seconds == 1.0
    assert readings.read_first_line(ended, Path()).seconds == 0.5
    assert readings.read_duration(ended, Path()).seconds == 9.0
    with pytest.raises(ValueError, match="nothing"):
        readings.read_first_line(Process(status=0), Path())


def test_seconds_until_the_last_step_and_until_the_exit(peers, tmp_path):
    """The other figures of the reading stay; the process's own duration is at least as long."""
    lines = [*(Line(float(n), f"{n}\timages/sec: 3") for n in (1, 2, 3)), Line(4.0, "total")]
    read = readings.until_last_step(lambda process, path: Reading(8, (1.0,), versions="x 1"))
    ended = Process(status=0, seconds=9.0, lines=lines)
    assert read(ended, Path()) == Reading(8, (1.0,), seconds=3.0, versions="x 1")
    with pytest.raises(ValueError, match="no line of a step"):
        read(Process(status=0, lines=lines[3:]), Path())

    file = tmp_path / "process.csv"
    flags = ("--scenarios=process", "--rounds=2", "--only=cnnbench,library", "--turn_seconds=0.5")
    status, lines, _ = peers(*flags, f"--csv={file}")
    assert status == 0
    found = [line for line in lines if line.startswith("process cnnbench fp32 2 32.00 250.00 ms ")]
    assert len(found) == 1
    assert found[0].endswith(" s")
    with file.open(newline="") as rows:
        written = list(csv.DictReader(rows))
    assert [row["subject"] for row in written] in (
        ["cnnbench", "library", "library", "cnnbench"],
        ["library", "cnnbench", "cnnbench", "library"],
    )
    for row in written:
        assert 0 < float(row["seconds"]) < float(row["process_seconds"])


@pytest.mark.parametrize(
    ("subject", "other", "bound"),
    [("cnnbench", "ancestor", 0.8), ("library", "ancestor", 1.0), ("cnnbench", "torch", None)],
)
def test_ratios_of_the_time_of_whole_processes(subject, other, bound):
    demands = {demand.text: demand for demand in demands_of(options("--scenarios=process"))}
    taken = Reading(seconds=6.0, process_seconds=9.0), Reading(seconds=8.0, process_seconds=10.0)
    pair = f"{subject} fp32 / {other} fp32"
    to_last_step = demands[f"start to last step, {pair}"]
    assert (to_last_step.figure(*taken), to_last_step.bound) == (0.75, bound)
    assert to_last_step.at_most
    assert demands[f"start to exit, {pair}"].figure(*taken) == 0.9


REDUCTIONS = {
    "gradients": (
        [
            row("xring", 2.0, 9.0, 1.0),
            row("copy", 4.0),
            row("rechd", 1.0, wrong=1),
            row("pscpu", error="boom"),
            row("collective", 3.0),
        ],
        {
            "ResNet-50, 4 devices: speed of xring / collective": 1.5,
            "ResNet-50, 4 devices: speed of xring / reduction_to_one_device": 4.0,
            "ResNet-50, 4 devices: speed of copy / collective": 0.75,
            "ResNet-50, 4 devices: speed of copy / reduction_to_one_device": 2.0,
        },
    ),
    # Four devices copy 16 MiB each in a second: 64 MiB/s. 2 * 3 * 16 MiB take 1.5 s.
    "large": (
        [row("xring", 3.0), row("xring", 1.0, size=64 << 20)],
        {"16 MiB, 4 devices: xring / memory-copy estimate": 0.5},
    ),
    "build": (
        [
            *(row("copy", devices=n, build_seconds=s) for n, s in ((2, 1.0), (4, 2.5), (8, 3.0))),
            row("xring", devices=2, build_seconds=1.0),
        ],
        {
            "resnet50, 8 devices: copy traced and built, s": 3.0,
            "resnet50, 2 to 8 devices: copy build time over devices": 0.75,
        },
    ),
}


@pytest.mark.parametrize("scenario", REDUCTIONS)
def test_figures_of_reductions_by_hand(scenario, make_reductions):
    from cnnbench.records.all_reduce import Copying

    points, expected = REDUCTIONS[scenario]
    record: AllReduceRecord = make_reductions()(
        *points,
        peers=(row("reduction_to_one_device", 8.0),),
        copies=(Copying(bytes=16 << 20, devices=4, seconds=(1.0,)),),
    )
    found = {}
    for demand in demands_of(options(f"--scenarios={scenario}", "--devices=4")):
        figure = demand.figure(*(Reading(document=record) for _ in demand.subjects))
        if figure is not None:
            found[demand.text] = figure
    assert found == expected
