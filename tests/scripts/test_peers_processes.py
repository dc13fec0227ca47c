"""Running peers, reading their output, the CSV file and the options."""

from __future__ import annotations

import csv
import itertools
import json
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import compare_peers
import pytest
from peers import photos, readers
from peers.measurement import (
    COLUMNS,
    FAILED,
    NOT_RUN,
    OK,
    CsvFile,
    Measurement,
    Reading,
    measure,
    measure_in_turn,
)
from peers.options import SCENARIOS, parse
from peers.process import EndedProcess, Line, ProcessError, run
from peers.programs import Subject
from peers.subjects import chosen, scenario_subjects
from peers.turns import Rotation

NO_RECORD = Path("/nowhere/record.json")


def _finished(*lines: Line) -> EndedProcess:
    return EndedProcess(0, 9.0, lines, "", False)


def _printed(*texts: str, step: float = 1.0) -> EndedProcess:
    return _finished(*(Line(i * step, text) for i, text in enumerate(texts, start=1)))


def test_lines_carry_their_arrival_times_and_memory():
    code = "import time\nfor i in range(3): print(i); time.sleep(0.2)"
    done = run([sys.executable, "-c", code], timeout=60, watch_memory=lambda text: text == "1")
    assert [line.text for line in done.lines] == ["0", "1", "2"]
    assert done.lines[2].seconds - done.lines[0].seconds >= 0.35
    assert done.status == 0
    assert done.lines[0].resident_bytes is None
    assert done.lines[1].resident_bytes > 1e6


def test_the_memory_of_a_run_is_that_of_the_child_that_measures():
    code = (
        "import os, sys\n"
        "if os.fork(): os.wait(); sys.exit()\n"
        "memory = bytes(range(256)) * 10**6\n"
        "print('1\\timages/sec: 1')"
    )
    done = run([sys.executable, "-c", code], timeout=60, watch_memory=readers.is_step_line)
    assert done.lines[0].resident_bytes > 256e6


def test_peak_memory_is_that_of_the_process_and_of_children_it_waited_for():
    # Measured from a small process: a child starts as a copy of it.
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]; from peers.process import run\n"
        "large = 'memory = bytearray(200_000_000); del memory'\n"
        "child = f'import subprocess, sys; subprocess.run([sys.executable, \"-c\", {large!r}])'\n"
        "python = [sys.executable, '-c']\n"
        "print(*(run([*python, code], timeout=60).peak_bytes for code in ('', large, child)))\n"
    )
    command = [sys.executable, "-c", code, str(Path(compare_peers.__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    none, own, of_child = map(int, done.stdout.split())
    assert none + 190e6 < min(own, of_child)
    assert max(own, of_child) < none + 300e6


def test_the_reason_of_a_failure_is_its_last_line():
    code = "import sys; print('out'); print('first\\n\\nlast ', file=sys.stderr); sys.exit(3)"
    done = run([sys.executable, "-c", code], timeout=60)
    assert done.reason == "exit status 3: last"
    assert EndedProcess(1, 0.1, (), "", False).reason == "exit status 1: no output"
    done.require(3)
    for wrong in (done, EndedProcess(0, 9.0, (), "", True)):
        with pytest.raises(ProcessError, match=wrong.reason):
            wrong.require()


def test_child_reading_is_the_last_marked_line():
    output = ("chatter", 'MEASURED {"batch": 8, "step_seconds": [0.5, 0.25, 1.0]}', "bye")
    reading = readers.read_child(_printed(*output), NO_RECORD)
    assert reading.median_step_seconds == 0.5
    assert reading.images_per_sec == 16
    assert reading.mean_images_per_sec == pytest.approx(24 / 1.75)
    with pytest.raises(ValueError, match="without a measurement"):
        readers.read_child(_printed("chatter"), NO_RECORD)


def test_record_reading(tmp_path):
    record = {
        "schema": 1,
        "status": "ok",
        "batch": {"per_device": 4, "global": 8},
        "step_seconds": [0.5, 0.5],
        "model": {"training_flops_per_image": 2e9},
        "environment": {"tensorflow_version": "2.21.0"},
    }
    path = tmp_path / "record.json"
    path.write_text(json.dumps(record))
    reading = readers.read_record(_printed(), path)
    assert reading.images_per_sec == 16
    assert reading.achieved_flops_per_sec == 32e9
    assert reading.versions == "tensorflow 2.21.0"
    inference = {"config": {"forward_only": True}, "model": {"forward_flops_per_image": 1e9}}
    path.write_text(json.dumps({**record, **inference}))
    assert readers.read_record(_printed(), path).achieved_flops_per_sec == 16e9
    path.write_text(json.dumps({**record, "status": "failed"}))
    with pytest.raises(ValueError, match="'failed'"):
        readers.read_record(_printed(), path)
    with pytest.raises(ValueError, match="no record"):
        readers.read_record(_printed(), NO_RECORD)


@pytest.mark.parametrize(("total", "problem"), [("4.05", ""), ("40.00", "total is 40")])
def test_ancestor_steps_are_timed_by_the_arrival_of_their_lines(total, problem):
    steps = [f"{i}\timages/sec: 4.0 +/- 0.0 (jitter = 0.0)\t8.1" for i in range(1, 5)]
    output = ("Step\tImg/sec\ttotal_loss", *steps, f"total images/sec: {total}")
    read = readers.ancestor_reader(8, "tf_cnn_benchmarks abc")
    if problem:
        with pytest.raises(ValueError, match=problem):
            read(_printed(*output, step=2.0), NO_RECORD)
        return
    reading = read(_printed(*output, step=2.0), NO_RECORD)
    assert reading == Reading(8, (2.0, 2.0, 2.0), versions="tf_cnn_benchmarks abc")
    with pytest.raises(ValueError, match="1 step lines and 0 totals"):
        read(_printed(steps[0]), NO_RECORD)


def test_durations_of_a_start():
    done = _printed("x", "1\timages/sec: 3.0 +/-")
    assert readers.read_first_step(done, NO_RECORD).seconds == 2.0
    assert readers.read_first_line(done, NO_RECORD).seconds == 1.0
    assert readers.read_duration(done, NO_RECORD).seconds == 9.0
    with pytest.raises(ValueError, match="no line for step 1"):
        readers.read_first_step(_printed("x", "10\timages/sec: 3.0 +/-"), NO_RECORD)
    with pytest.raises(ValueError, match="nothing"):
        readers.read_first_line(_printed(), NO_RECORD)


def test_memory_is_that_of_the_first_and_the_last_step():
    done = _finished(Line(1.0, "1\timages/sec: 3", 100), Line(2.0, "50\timages/sec: 3", 104))
    assert readers.memory_reader(1, 50)(done, NO_RECORD).memory_growth == 1.04
    with pytest.raises(ValueError, match="no resident memory"):
        readers.memory_reader(1, 60)(done, NO_RECORD)


def test_csv_has_a_row_per_measurement_as_soon_as_it_is_known(tmp_path):
    path = tmp_path / "peers.csv"
    file = CsvFile(path)
    reading = Reading(8, (0.5, 0.25, 0.5), versions="a 1, b 2")
    file.add(Measurement("towers", 2, 3, "one tower", "fp32", OK, reading=reading))
    file.add(Measurement("towers", 0, 0, "torch", "bf16", NOT_RUN, "not, here"))
    with path.open(newline="") as lines:
        first, second = csv.DictReader(lines)
    assert tuple(first) == COLUMNS
    assert (first["round"], first["order"], first["steps"]) == ("2", "3", "3")
    assert (first["images_per_sec"], first["median_step_seconds"]) == ("16", "0.5")
    assert (first["versions"], first["seconds"]) == ("a 1, b 2", "")
    assert (second["status"], second["reason"]) == ("not run", "not, here")
    file.close()
    with pytest.raises(FileExistsError):
        CsvFile(path)


def _options(*argv: str):
    return parse(["--cnnbench_python=/env/bin/python", *argv])


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_subjects_have_distinct_keys(scenario):
    subjects = scenario_subjects(scenario, _options())
    keys = [s.key for s in subjects]
    assert len(set(keys)) == len(keys)


def test_demands_name_subjects_that_exist():
    from peers.demands import DEMANDS

    options = _options()
    for demand in DEMANDS:
        keys = {s.key for s in scenario_subjects(demand.scenario, options)}
        assert set(demand.subjects) <= keys


def test_every_peer_gets_the_same_work():
    argv = ("--batches=7", "--warmup=3", "--batch_size=4", "--ancestor=/a")
    subjects = scenario_subjects("resnet50", _options(*argv))
    for subject in subjects:
        if subject.name == "matmul":
            continue
        command = set(subject.command)
        assert {"--model=resnet50", "--batch_size=4", "--weight_decay=4e-05"} <= command
        assert command & {"--batches=7", "--num_batches=7"}
        assert command & {"--warmup=3", "--num_warmup_batches=3"}
        assert command & {"--learning_rate=0.001", "--init_learning_rate=0.001"}


def test_a_matrix_product_takes_no_turns():
    options = _options("--ancestor=/a", "--turn_seconds=0.5")
    subjects = scenario_subjects("resnet50", options)
    due = [(("resnet50", 1, 1, one.name, one.dtype), one) for one in subjects]
    groups = compare_peers.groups_of(due, options)
    alone = [group[0][1].name for group in groups if len(group) == 1]
    assert alone == ["matmul"] * 2
    assert len(groups) == 3


def test_classic_networks_train_with_batch_16_on_their_data_set():
    subjects = scenario_subjects("densenet40", _options("--ancestor=/a", "--batch_size=8"))
    work = {"--model=densenet40_k12", "--data_name=cifar10", "--batch_size=16"}
    assert all(work <= set(subject.command) for subject in subjects)


def test_inference_freezes_what_is_called_frozen():
    subjects = scenario_subjects("forward", _options("--ancestor=/a", "--batch_size=4"))
    assert all({"--forward_only", "--batch_size=4"} <= set(s.command) for s in subjects)
    frozen = [s.name for s in subjects if "--freeze_when_forward_only" in s.command]
    assert frozen == ["frozen", "frozen"]


def test_input_pipelines_read_the_same_files():
    ours, bare = scenario_subjects("input", _options("--data_dir=/d", "--batches=2", "--warmup=1"))
    assert {"--input_only", "--num_batches=10", "--num_warmup_batches=5"} <= set(ours.command)
    assert {"--batches=10", "--warmup=5"} <= set(bare.command)
    assert all({"--data_dir=/d", "--batch_size=64"} <= set(s.command) for s in (ours, bare))
    without = scenario_subjects("input", _options())
    assert {s.missing for s in without} == {"there are no ImageNet files"}


def test_a_step_of_input_is_its_share_of_the_loop(tmp_path):
    path = tmp_path / "record.json"
    record = {
        "schema": 1,
        "status": "ok",
        "batch": {"per_device": 4, "global": 4},
        "step_seconds": [0.001, 1.0],
        "model": {"training_flops_per_image": 2e9},
        "measured": {"loop_seconds": 2.0},
    }
    path.write_text(json.dumps(record))
    reading = readers.read_loop(_printed(), path)
    assert reading.images_per_sec == reading.mean_images_per_sec == 4
    assert reading.achieved_flops_per_sec is None


def test_photographs_are_made_where_they_are_needed_and_go(monkeypatch, capsys):
    made = []

    def fake(command, **_):
        made.append(Path(command[2]))
        if len(made) > 1:
            raise OSError("disk full")
        made[0].mkdir()
        return EndedProcess(0, 1.0, (), "", False)

    monkeypatch.setattr(photos, "run", fake)
    with photos.with_imagenet_files(_options("--scenarios=input")) as options:
        assert options.data_dir == made[0]
        assert made[0].is_dir()
    assert not made[0].exists()
    with photos.with_imagenet_files(_options("--scenarios=input")) as options:
        assert options.data_dir is None
    assert "failed: disk full" in capsys.readouterr().err
    for argv in (["--scenarios=towers"], ["--scenarios=input", "--data_dir=/d"]):
        with photos.with_imagenet_files(_options(*argv)) as options:
            assert options == _options(*argv)
    assert len(made) == 2


def test_workers_share_the_batch_evenly():
    for argv, workers in ([], 2), (["--workers=4"], 4):
        own, bare = scenario_subjects("coordinator", _options("--batch_size=8", *argv))
        assert {
            *("--ps=1", f"--workers={workers}", f"--batch_size={8 // workers}"),
            "--variable_update=parameter_server_strategy",
        } <= set(own.command)
        assert {"--batch_size=8", f"--workers={workers}"} <= set(bare.command)


def test_only_chooses_by_name_or_by_name_and_dtype():
    subjects = scenario_subjects("resnet50", _options())
    assert {s.key for s in chosen(subjects, ("torch", "cnnbench:bf16"))} == {
        ("torch", "fp32"),
        ("torch", "bf16"),
        ("cnnbench", "bf16"),
    }
    assert chosen(subjects, ()) == subjects


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("--scenarios=resnet", "choose from resnet50"),
        ("--rounds=0", "1 is the least"),
        ("--batch_size=5", "must be even"),
        ("--workers=3", "must be a multiple of --workers"),
    ],
)
def test_wrong_options_are_refused(argument, said, capsys):
    with pytest.raises(SystemExit) as stopped:
        parse([argument])
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err


def test_missing_ancestor_and_modules_are_told(tmp_path):
    subjects = scenario_subjects("resnet50", _options())
    (ancestor,) = [s for s in subjects if s.name == "ancestor"]
    assert compare_peers.why_missing(ancestor) == "no --ancestor=FOLDER was given"
    subjects = scenario_subjects("resnet50", _options(f"--ancestor={tmp_path}"))
    (ancestor,) = [s for s in subjects if s.name == "ancestor"]
    assert "no tf_cnn_benchmarks.py in" in compare_peers.why_missing(ancestor)
    modules = ("json", "surely_not_installed")
    subject = Subject("x", "fp32", (), lambda f, r: Reading(), sys.executable, modules)
    assert compare_peers.why_missing(subject) == f"{sys.executable} has no surely_not_installed"
    assert "does not run" in compare_peers.why_missing(
        Subject("x", "fp32", (), lambda f, r: Reading(), "/no/python", modules)
    )


def _measure(code: str, read, **changes) -> Measurement:
    command = (sys.executable, "-c", code, "{record}")
    subject = Subject("x", "fp32", command, read, sys.executable, (), **changes)
    place = ("memory", 2, 1, "x", "fp32")
    return measure(place, partial(compare_peers.read, subject, timeout=60))


# Prints when each of its steps is done, and what clock it then is.
_STEPS = """
import sys, time
print("loading")
for number in range(1, 13):
    begun = time.monotonic()
    while time.monotonic() - begun < 0.02: pass
    print(f"{number}\\timages/sec: 1", time.monotonic(), flush=True)
"""


def _in_turn(codes, seconds=0.05):
    finished = []

    def read(ended: EndedProcess, _: Path) -> Reading:
        finished.append(ended)
        return Reading(step_seconds=(9.0,))

    works = []
    for code in codes:
        subject = Subject("x", "fp32", (sys.executable, "-c", code), read, sys.executable, ())
        works.append(partial(compare_peers.read, subject, timeout=60))
    places = [("resnet50", 1, number, "x", "fp32") for number in range(1, 1 + len(works))]
    rotation = Rotation(seconds, readers.is_step_line)
    return measure_in_turn(places, works, rotation), finished


def test_processes_in_turn_run_one_at_a_time_and_their_waits_do_not_count():
    measured, finished = _in_turn([_STEPS] * 3)
    clocks = sorted(
        (float(line.text.split()[-1]), index)
        for index, one in enumerate(finished)
        for line in one.lines[1:]
    )
    owners = [index for _, index in clocks]
    # Each has several turns, of several steps but for the first.
    assert owners[:3] != [owners[0]] * 3
    assert 9 <= sum(a != b for a, b in itertools.pairwise(owners)) <= 20
    for one, of_process in zip(measured, finished, strict=True):
        assert one.status == OK
        assert of_process.waited > 0.2
        steps = one.reading.step_seconds
        assert len(steps) == 11
        assert sum(steps) < 0.02 * 11 + 0.5 * of_process.waited


_WITH_A_CHILD = """
import subprocess, sys
tick = "import time\\nwhile True: print(time.monotonic(), flush=True); time.sleep(0.002)"
command = [sys.executable, "-c", tick]
child = subprocess.Popen(command, stdout=open("ticks", "w"), start_new_session=True)
"""


def test_what_a_program_has_started_runs_in_its_turn_alone():
    end = "\nchild.kill(); child.wait(); print(*open('ticks').read().split())"
    measured, finished = _in_turn([_WITH_A_CHILD + _STEPS + end, _STEPS])
    assert [one.status for one in measured] == [OK, OK]
    other, parent = sorted(finished, key=lambda one: len(one.lines))  # in order of their ends
    ticks = [float(word) for word in parent.lines[-1].text.split()]
    ends = [float(line.text.split()[-1]) for line in other.lines[other.counted + 1 :]]
    # Steps in the middle of a turn: it may be stopped just after a step has begun.
    steps = [(begin, end) for begin, end in itertools.pairwise(ends) if end - begin < 0.03]
    assert steps
    assert len(ticks) > 20
    assert not [tick for tick in ticks for begin, end in steps if begin < tick < end - 0.001]


def test_a_program_that_ends_before_the_turns_begin_is_not_measured():
    late = "import time; time.sleep(1)\n" + _STEPS
    measured, _ = _in_turn(["print('1\\timages/sec: 1', flush=True)", late])
    assert [one.status for one in measured] == [FAILED, OK]
    assert measured[0].reason == (
        "ValueError: it ended before its turns began; give it more --batches"
    )


def test_a_program_that_takes_too_long_is_killed_with_what_it_has_started(tmp_path):
    code = _WITH_A_CHILD + "print(child.pid, flush=True)\nimport time; time.sleep(60)"
    start = time.monotonic()
    ended = run([sys.executable, "-c", code], timeout=1, folder=str(tmp_path))
    # What it has started holds a pipe: reading would go on if it lived.
    assert time.monotonic() - start < 50
    assert ended.timed_out
    assert ended.reason.startswith("killed after")
    deadline = time.monotonic() + 10
    while (found := _state(int(ended.lines[0].text))) not in ("", "Z"):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def _state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


def test_one_of_several_in_turn_that_fails_does_not_keep_the_others():
    failing = _STEPS.replace(
        "    begun", "    if number == 5: raise SystemExit('no more')\n    begun"
    )
    measured, _ = _in_turn([failing, _STEPS])
    assert [one.status for one in measured] == [FAILED, OK]
    assert measured[0].reason == "exit status 1: no more"


def test_an_interrupt_ends_all_that_run_in_turn():
    script = (
        "import sys; sys.path[:0] = sys.argv[1:3]; import test_peers_processes as tests; "
        "step = 'print(\"1\\\\timages/sec: 1\", flush=True); import time; time.sleep(60)'; "
        "tests._in_turn([step] * 2)"
    )
    scripts = Path(compare_peers.__file__).parent
    command = [sys.executable, "-c", script, str(Path(__file__).parent), str(scripts)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 60
    while len(_children(process.pid)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    children = _children(process.pid)
    assert len(children) == 2
    process.send_signal(signal.SIGINT)
    process.wait(60)
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]


def _children(pid):
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


def test_a_measurement_gets_the_record_file():
    code = "import sys; open(sys.argv[1], 'w').write('{\"batch\": 3}')"
    done = _measure(code, lambda _, record: Reading(batch=json.loads(record.read_text())["batch"]))
    assert (done.status, done.round, done.reading.batch) == (OK, 2, 3)
    assert done.load_average >= 0


def test_failures_are_one_line():
    silent = _measure("", readers.read_child)
    assert (silent.status, silent.reading) == (FAILED, None)
    assert silent.reason == "ValueError: it ended without a measurement"
    broken = _measure("raise SystemExit(4)", readers.read_child)
    assert broken.reason == "exit status 4: no output"
    assert _measure("raise SystemExit(2)", readers.read_duration, status=2).status == OK


def test_a_subject_that_fails_twice_is_not_started_again(monkeypatch, capsys):
    subject = Subject("x", "fp32", ("/no/program",), readers.read_duration, sys.executable, ())
    monkeypatch.setattr(compare_peers, "scenario_subjects", lambda scenario, options: [subject])
    results: list[Measurement] = []
    compare_peers.run_scenario("memory", _options("--rounds=4"), None, results)
    assert [m.status for m in results] == [FAILED, FAILED, NOT_RUN, NOT_RUN]
    assert capsys.readouterr().err.count("failed: FileNotFoundError") == 2


def test_everything_missing_is_still_a_report(capsys, tmp_path):
    path = tmp_path / "out.csv"
    argv = ["--scenarios=resnet50", "--only=ancestor", f"--csv={path}"]
    assert compare_peers.main(argv) == 4
    out = capsys.readouterr().out
    assert "ancestor fp32 not run: no --ancestor=FOLDER was given" in out
    assert len(path.read_text().splitlines()) == 2
    assert compare_peers.main(argv) == 2
    assert "File exists" in capsys.readouterr().err
    assert compare_peers.main(["--scenarios=memory", "--only=nobody"]) == 2


def test_what_was_measured_before_an_interruption_is_shown(monkeypatch, capsys):
    """SIGTERM, as `timeout` sends it, ends the process under way and keeps what was measured."""
    own = (*_SLEEPER, "--first")
    subjects = [
        Subject("quick", "fp32", own, readers.read_child, sys.executable, ()),
        Subject("slow", "fp32", _SLEEPER, readers.read_child, sys.executable, ()),
    ]
    monkeypatch.setattr(compare_peers, "scenario_subjects", lambda *_: subjects)
    monkeypatch.setattr(compare_peers, "orders", lambda *_: [subjects])
    previous = signal.getsignal(signal.SIGTERM)
    try:
        assert compare_peers.main(["--scenarios=memory", "--rounds=1"]) == 130
    finally:
        signal.signal(signal.SIGTERM, previous)
    shown = capsys.readouterr()
    assert "interrupted" in shown.err
    assert "quick" in shown.out


# Without an argument it has the one that started it stopped, and then would go on.
_SLEEPER = (
    sys.executable,
    "-c",
    "import os, signal, sys, time\n"
    'print(\'MEASURED {"batch": 8, "step_seconds": [0.5]}\', flush=True)\n'
    "if len(sys.argv) == 1:\n"
    "    time.sleep(0.5)  # until the parent waits: a signal just before would be heard after it\n"
    "    os.kill(os.getppid(), signal.SIGTERM)\n"
    "    time.sleep(600)",
)
