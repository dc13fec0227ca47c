"""What is said about step times when a run is over."""

import dataclasses
import io
import re

import pytest
from short_runs import TINY, command

from cnnbench import BenchmarkCNN, Params
from cnnbench.base import terminal
from cnnbench.base.terminal import MessageWriter
from cnnbench.machine.checks import parse_silenced
from cnnbench.records.input import SkippedRecords
from cnnbench.records.measurements import Measurements
from cnnbench.records.metric import SUMMARY, Summary
from cnnbench.records.run import Batch, Cluster, LossScaling, ModelInfo
from cnnbench.run.driver import training
from cnnbench.run.driver.notices import ended_run_notices, print_notices

pytestmark = pytest.mark.usefixtures("quick_start")


def test_a_long_warm_up_is_said_before_it():
    told = io.StringIO()
    params = Params.from_dict({**TINY, "num_warmup_batches": 1001, "num_batches": 1})
    BenchmarkCNN(params, messages=MessageWriter(told))
    said = "cnnbench: a long run: up to 1001 warm-up steps, 1 timed steps, 0 evaluation steps\n"
    assert told.getvalue() == said


def test_a_slow_warm_up_shows_its_progress(monkeypatch, capsys):
    monkeypatch.setattr(training, "_SILENT_SECONDS", 0.0)
    assert command(num_warmup_batches=20, num_batches=1) == 0
    lines = capsys.readouterr().err.splitlines()
    progress = [line for line in lines if "cnnbench: warm-up step " in line]
    assert re.fullmatch(r"cnnbench: warm-up step \d+ of 20, .+ left", progress[-1])


def notices_with(record, word):
    """The notices of a run that contain a word: texts, and whether each is a warning."""
    return [(text, bool(name)) for text, name in ended_run_notices(record) if word in text]


def record(warmup, timed, status="fixed"):
    run = Measurements(command=[], config={})
    for seconds in warmup:
        run.warmup.add_execution(seconds)
    for seconds in timed:
        run.timed.add_execution(seconds)
    run.update_record(warmup_status=status)
    return run.make_record()


FAST, SLOW = [0.02], [0.03]


@pytest.mark.parametrize(
    ("run", "words", "warns"),
    [
        (record([], FAST * 10), [], False),
        (record(FAST * 100, []), [], False),
        (record(FAST * 10, FAST * 90), ["steady from warm-up step 1 on"], False),
        (record([0.5] + FAST * 9, FAST * 90), ["steady from warm-up step 2 on"], False),
        (record([], FAST * 90), ["steady from step 1 on"], False),
        (
            record(SLOW * 10, SLOW * 15 + FAST * 85),
            ["only from step 16 on, after 15 of 100 timed", "--num_warmup_batches=25 or --warmup"],
            True,
        ),
        (record(SLOW * 10, SLOW * 15 + FAST * 85, "limit"), ["only from step 16 on"], True),
        (
            record(FAST * 10, FAST * 50 + SLOW * 50),
            ["only from step 51 on", "slower than before: from 20.00 to 30.00 ms"],
            True,
        ),
        (
            record(FAST * 10, FAST * 90 + SLOW * 10),
            ["no steady state", "from 20.00 to 30.00 ms, came at step 91"],
            True,
        ),
    ],
)
def test_steady_state(run, words, warns):
    found = notices_with(run, "stead")
    found = [notice for notice in found if "not steady after" not in notice[0]]
    assert len(found) == bool(words)
    for text, is_warning in found:
        assert is_warning is warns
        assert all(part in text for part in words)
        assert ("--num_warmup_batches" in text) == any("--num_warmup" in w for w in words)


def test_warm_up_at_its_limit():
    assert notices_with(record([0.02] * 40, [0.02], "steady"), "not steady") == []
    ((text, warns),) = notices_with(record([0.02] * 40, [0.02], "limit"), "not steady")
    assert "not steady after 40 warm-up steps, the most that --max_warmup_batches" in text
    assert warns


@pytest.mark.parametrize(
    ("peak", "source", "words"),
    [
        (None, None, None),
        (6000.0, "measured: matmul", None),
        (4000.0, "measured: matmul", "150 % and is left out: the peak (measured: matmul) is too"),
        (5000.0, "given: --peak_flops", "--peak_flops would correct it"),
    ],
)
def test_more_than_the_peak(peak, source, words):
    run = Measurements(command=[], config={})
    # 8 images of 15 FLOP in 0.02 s.
    model = ModelInfo(
        name="lenet",
        parameters=1,
        trainable_parameters=1,
        forward_flops_per_image=5,
        training_flops_per_image=15,
    )
    run.update_record(batch=Batch(per_device=8, global_=8), model=model)
    run.timed.add_execution(0.02)
    run.update_record("measured", peak_flops_per_sec=peak, peak_flops_source=source)
    found = notices_with(run.make_record(), "MFU would be")
    assert len(found) == (words is not None)
    assert all(words in text and warns for text, warns in found)
    assert (run.make_record().summary().mfu is None) == (peak != 6000.0)


def summary(**values):
    return Summary({**dict.fromkeys(SUMMARY), **values})


def _scaled_record(start, end, warmup=(), timed=()):
    run = Measurements(command=[], config={})
    for step in range(1, 4):
        run.warmup.add_execution(1.0, 1.0, skipped=[step in warmup])
        run.timed.add_execution(1.0, 1.0, skipped=[step in timed])
    if start is not None:
        run.update_record(loss_scaling=LossScaling(start=start, end=end))
    return run.make_record()


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (_scaled_record(None, None), None),
        (_scaled_record(128.0, 128.0), None),
        (_scaled_record(128.0, 512.0), ["the loss scale went from 128 to 512"]),
        (_scaled_record(2.0**24, 2.0**23, timed=[1]), ["1 of 6 steps skipped", "to 8388608"]),
        (
            _scaled_record(4.0, 1.0, [1, 2], [3]),
            ["3 of 6 steps", "(2 of them in the warm-up)", "to 1, its minimum", "unlikely cause"],
        ),
    ],
)
def test_what_an_automatic_loss_scale_did(record, words):
    found = notices_with(record, "loss scale")
    assert len(found) == (words is not None)
    assert all(part in text and not warns for text, warns in found for part in words)
    interrupted = dataclasses.replace(record, status="interrupted")
    assert [(text, bool(name)) for text, name in ended_run_notices(interrupted)] == found


def test_a_run_says_that_it_cannot_show_how_certain_its_speed_is():
    ended = dataclasses.replace(record(FAST, FAST * 9), status="ok")
    ((text, warns),) = notices_with(ended, "cannot show")
    assert ("one process" in text, "--repeats=6" in text, warns) == (True, True, False)
    job = dataclasses.replace(ended, cluster=Cluster(tasks=(), workers=()))
    ((text, warns),) = notices_with(job, "cannot show")
    assert ("one job" in text, "--repeats" in text, warns) == (True, False, False)
    for silent in (record(FAST, []), dataclasses.replace(ended, status="interrupted")):
        assert notices_with(silent, "cannot show") == []


def test_a_late_steady_state_is_silenced_by_its_name(monkeypatch):
    late = dataclasses.replace(record(SLOW * 10, SLOW * 15 + FAST * 85), status="ok")
    stream = io.StringIO()
    messages = MessageWriter(stream)
    print_notices(late, messages)
    assert "(--quiet_conditions=steady silences this)" in stream.getvalue()
    stream.truncate(0)
    monkeypatch.setattr(terminal, "_silenced", parse_silenced("steady"))
    print_notices(late, messages)
    assert "steady" not in stream.getvalue()


def lines_of(summary):
    """The notices of a run with these figures and nothing else."""
    ended = dataclasses.replace(record([], []), status="ok")
    vars(ended)["_summary"] = summary
    return [text for text, _ in ended_run_notices(ended)]


def test_summary_in_words():
    assert lines_of(
        summary(
            achieved_flops_per_sec=45.25e9,
            peak_flops_per_sec=90.5e9,
            peak_flops_source="measured: matmul",
            mfu=0.5,
            cpu_seconds_per_step=0.0371,
            busy_cpus=1.875,
            input_wait_fraction=0.031,
            peak_memory_bytes=800 * 2**20,
        )
    ) == [
        "45.25 GFLOP/s achieved, 50.0 % of 90.50 GFLOP/s (measured: matmul)",
        "37.10 ms of CPU time per step, 1.875 CPUs busy in the timed loop",
        "3.1 % of the time spent waiting for input",
        "800 MiB peak memory",
    ]


def test_summary_says_nothing_about_what_is_unknown():
    assert lines_of(summary()) == []
    assert lines_of(summary(achieved_flops_per_sec=2e12)) == ["2,000 GFLOP/s achieved"]


@pytest.mark.parametrize(("count", "rest"), [(2, []), (3, [["1", "3"]]), (40, [["38", "40"]])])
def test_skipped_records_that_are_not_named_are_counted(count, rest):
    skipped = SkippedRecords(count=count, first=("a: record x", "b: record y"))
    ended = dataclasses.replace(record([1.0], [1.0]), skipped_records=skipped)
    found = notices_with(ended, "skipped")
    assert all(warns for _, warns in found)
    first, second, *others = (text for text, _ in found)
    assert first.endswith("a: record x")
    assert second.endswith("b: record y")
    assert [re.findall(r"\d+", text) for text in others] == rest


@pytest.mark.parametrize(("used", "numbers"), [(1, ["1", "8"]), (2, ["2", "8"])])
def test_the_batch_that_fits_is_told(used, numbers):
    batch = Batch(per_device=used, global_=2 * used, requested_per_device=8)
    ended = dataclasses.replace(record([1.0], [1.0]), batch=batch)
    ((text, warns),) = notices_with(ended, "--find_batch_size")
    assert re.findall(r"\d+", text) == numbers
    assert ("images per device" in text, warns) == (used > 1, False)
