"""Processes that are measured, alone and in turn: lines, memory, ends, and what they start."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import time
from pathlib import Path

import compare_peers
import pytest
from forked import finished, gone, until
from peers.process import Process, ProcessError, is_step_line, run, run_in_turn
from peers.readings import FAILED, NOT_RUN, OK, Measurement, Reading
from peers.scenarios import Options, Subject, scenario_subjects

SCRIPTS = str(Path(compare_peers.__file__).parent)


def test_lines_carry_their_arrival_times_and_the_memory_of_the_child_that_measures():
    code = (
        "import os, sys, time\n"
        "print('begun'); time.sleep(0.4)\n"
        "if os.fork(): os.wait(); sys.exit(3)\n"
        "memory = bytes(range(256)) * 10**6\n"
        "print('1\\timages/sec: 1', flush=True)\n"
        "time.sleep(0.6)  # until its memory is read"
    )
    done = Process([sys.executable, "-c", code], watch_memory=is_step_line)
    run_in_turn([done], 60)
    begun, step = done.lines
    assert step.seconds - begun.seconds >= 0.35
    assert begun.resident_bytes is None
    assert step.resident_bytes > 256e6
    done.require(3)
    for wrong in (done, Process(status=0, seconds=9.0, timed_out=True), run(["/no"], timeout=60)):
        with pytest.raises(ProcessError, match=wrong.reason):
            wrong.require()
    assert Process(status=1).reason == "exit status 1: no output"


@pytest.mark.slow
def test_peak_memory_is_that_of_the_process_and_of_children_it_waited_for():
    # Measured from a small process: a child starts as a copy of it.
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]; from peers.process import run\n"
        "large = 'memory = bytearray(200_000_000); del memory'\n"
        "child = f'import subprocess, sys; subprocess.run([sys.executable, \"-c\", {large!r}])'\n"
        "python = [sys.executable, '-c']\n"
        "print(*(run([*python, code], timeout=60).peak_bytes for code in ('', large, child)))\n"
    )
    done = finished([sys.executable, "-c", code, SCRIPTS])
    none, own, of_child = map(int, done.stdout.split())
    assert none + 190e6 < min(own, of_child)
    assert max(own, of_child) < none + 300e6


# Prints when each of its steps is done, and what clock it then is.
STEPS = """
import sys, time
print("loading")
for number in range(1, 13):
    begun = time.monotonic()
    while time.monotonic() - begun < 0.02: pass
    print(f"{number}\\timages/sec: 1", time.monotonic(), flush=True)
    if number == 1: time.sleep(0.3)  # until it is stopped
"""


def in_turn(codes, seconds=0.05):
    finished = []

    def read(ended: Process, _: Path) -> Reading:
        finished.append(ended)
        return Reading(step_seconds=(9.0,))

    due = []
    for number, code in enumerate(codes, start=1):
        subject = Subject("x", "fp32", (sys.executable, "-c", code), read, sys.executable)
        due.append((Measurement("resnet50", 1, number, "x", "fp32", NOT_RUN), subject))
    options = Options(timeout=60, turn_seconds=seconds)
    return compare_peers.measure(due, options), finished


@pytest.mark.slow
def test_processes_in_turn_run_one_at_a_time_and_their_waits_do_not_count():
    measured, finished = in_turn([STEPS] * 3)
    clocks = sorted(
        (float(line.text.split()[-1]), index)
        for index, one in enumerate(finished)
        for line in one.lines[1:]
    )
    owners = [index for _, index in clocks]
    # Each has several turns, of several steps but for the first.
    assert owners[:3] != [owners[0]] * 3
    assert 9 <= sum(a != b for a, b in itertools.pairwise(owners)) <= 30
    for one, of_process in zip(measured, finished, strict=True):
        assert one.status == OK
        assert of_process.waited > 0.2
        steps = one.reading.step_seconds
        assert len(steps) == 11
        assert sum(steps[1:]) < 0.02 * 10 + 0.5 * of_process.waited


WITH_A_CHILD = """
import subprocess, sys
tick = "import time\\nwhile True: print(time.monotonic(), flush=True); time.sleep(0.001)"
command = [sys.executable, "-c", tick]
child = subprocess.Popen(command, stdout=open("ticks", "w"), start_new_session=True)
"""


@pytest.mark.slow
def test_what_a_program_has_started_runs_in_its_turn_alone():
    end = "\nchild.kill(); child.wait(); print(*open('ticks').read().split())"
    measured, finished = in_turn([WITH_A_CHILD + STEPS + end, STEPS])
    assert [one.status for one in measured] == [OK, OK]
    other, parent = sorted(finished, key=lambda one: len(one.lines))  # in order of their ends
    ticks = [float(word) for word in parent.lines[-1].text.split()]
    ends = [float(line.text.split()[-1]) for line in other.lines[other.counted + 1 :]]
    # Steps in the middle of a turn: it may be stopped just after a step has begun.
    steps = [(begin, end) for begin, end in itertools.pairwise(ends) if end - begin < 0.03]
    assert steps
    assert len(ticks) > 20
    assert not [tick for tick in ticks for begin, end in steps if begin < tick < end - 0.001]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        (
            "print('1\\timages/sec: 1', flush=True)",
            "import time; time.sleep(1)\n" + STEPS,
            "ValueError: the process ended before its first time slice; increase --batches",
        ),
        (
            STEPS.replace(
                "    begun", "    if number == 5: raise SystemExit('no more')\n    begun"
            ),
            STEPS,
            "exit status 1: no more",
        ),
    ],
)
def test_one_that_ends_early_does_not_keep_the_others(first, second, reason):
    measured, _ = in_turn([first, second])
    assert [one.status for one in measured] == [FAILED, OK]
    assert measured[0].reason == reason


@pytest.mark.slow
def test_a_program_that_takes_too_long_is_killed_with_what_it_has_started(tmp_path):
    code = WITH_A_CHILD + "print(child.pid, flush=True)\nimport time; time.sleep(60)"
    start = time.monotonic()
    ended = run([sys.executable, "-c", code], timeout=1, folder=str(tmp_path))
    # What it has started holds a pipe: reading would go on if it lived.
    assert time.monotonic() - start < 50
    assert ended.timed_out
    assert ended.reason.startswith("killed after")
    assert gone(int(ended.lines[0].text))


@pytest.mark.slow
def test_an_interrupt_ends_all_that_run_in_turn(tmp_path):
    step = (
        f"import pathlib, os, time; pathlib.Path({str(tmp_path)!r}, str(os.getpid())).touch(); "
        "print('1\\timages/sec: 1', flush=True); time.sleep(60)"
    )
    script = (
        "import sys; sys.path[:0] = sys.argv[1:]; import test_peers_turns as tests; "
        f"tests.in_turn([{step!r}] * 2)"
    )
    helpers = str(Path(__file__).parents[1] / "helpers")
    command = [sys.executable, "-c", script, str(Path(__file__).parent), SCRIPTS, helpers]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    until(lambda: len(list(tmp_path.iterdir())) >= 2, 60)
    process.send_signal(signal.SIGINT)
    process.wait(60)
    assert all(gone(path.name) for path in tmp_path.iterdir())


def test_a_matrix_product_takes_no_turns():
    options = Options(ancestor="/a", turn_seconds=0.5)
    subjects = scenario_subjects("resnet50", options)
    due = [(Measurement("resnet50", 1, 1, *one.key, NOT_RUN), one) for one in subjects]
    groups = compare_peers.interleaved_groups(due, options)
    alone = [group[0][1].name for group in groups if len(group) == 1]
    assert alone == ["matmul"] * 2
    assert len(groups) == 3
