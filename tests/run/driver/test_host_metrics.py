"""Metrics of all rows, computed in a process of their own while the run goes on.

Tests cnnbench/run/driver/evaluation.py.
"""

import io
import os
import re
import subprocess
import sys
from concurrent.futures import Future
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import short_runs
from covering import slow_if
from data_sets import WEATHER, own_forecast
from forked import finished, gone, until, wait_for
from short_runs import command

from cnnbench.errors import BenchmarkError
from cnnbench.records.measurements import Measurements
from cnnbench.records.run import Evaluation
from cnnbench.run.driver.console import Console
from cnnbench.run.driver.evaluation import EvaluationPublisher, PendingEvaluation
from cnnbench.run.driver.host_metrics import HostMetricsChildExecutor

EVALUATING = {"eval_during_training_every_n_steps": 2, "num_eval_batches": 2}


def forecast(**flags):
    sizes = {"batch_size": 4, "num_batches": 5, "num_warmup_batches": 0}
    return short_runs.run(**WEATHER, **sizes, **EVALUATING, **flags)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_run_has_the_same_results_in_the_same_order(quick_start):
    runs = [forecast(collect_eval_results_async=late) for late in (False, True)]
    now, later = (
        [(e.global_step, e.loss, e.top_1, list(e.metrics.items())) for e in run.record.evaluations]
        for run in runs
    )
    assert later == now
    assert [step for step, *_ in now] == [2, 4, 5]
    at_once, waited = ([line for line in run.lines if "median_off = " in line] for run in runs)
    assert waited == at_once
    assert len(at_once) == 3


def failing(folder, body):
    """Flags of a network whose metrics of all rows end in `body`."""
    return own_forecast(
        folder, f"def host_metrics(self, rows):\n    print('no result')\n    {body}"
    )


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_process_that_dies_fails_the_run(tmp_path, capsys, quick_start):
    record = tmp_path / "record.json"
    own = failing(tmp_path, "os.kill(os.getpid(), 9)")
    sizes = {"batch_size": 4, "num_batches": 3, "num_warmup_batches": 0, "num_eval_batches": 1}
    words = ("--collect_eval_results_async", "--eval_during_training_at_specified_steps=1")
    assert command(*words, **own, **sizes, result_json=record) == 4
    assert "of own was ended by SIGKILL" in capsys.readouterr().err.splitlines()[-1]
    # What is known of the evaluation is kept.
    assert '"rain_hits"' in record.read_text()


@pytest.mark.parametrize(
    ("body", "line"),
    slow_if(
        lambda case: "exit" in case[0],
        [
            (
                "os._exit(0)",
                "no metrics were computed: the process that computes metrics of own ended",
            ),
            ("raise ValueError('no boxes')", "Own.host_metrics(): ValueError: no boxes"),
            (
                "os.write(2, b'caf\\xe9 is closed'); os._exit(3)",
                "ended with exit code 3: caf\ufffd is closed",
            ),
        ],
    ),
)
def test_a_process_without_a_result_is_named(body, line, tmp_path):
    host = HostMetricsChildExecutor("own", "weather", failing(tmp_path, body)["plugin"].split(","))
    with pytest.raises(BenchmarkError, match=re.escape(line)):
        host.submit({"told": np.zeros(3), "true": np.zeros(3)}).result(60)
    host.close()


def evaluated(step, host):
    evaluation = Evaluation(global_step=step, examples=1, images_per_sec=1.0)
    return PendingEvaluation(evaluation, {"top_1": 0.5}, host)


@pytest.fixture
def publisher():
    """A publisher of evaluations, and what it records and prints."""
    out = io.StringIO()
    measurements = Measurements(command=[], config={})
    told = []
    messages = SimpleNamespace(warning=lambda *of: told.append(of))
    run = SimpleNamespace(console=Console(out), messages=messages, measurements=measurements)
    host = SimpleNamespace(close=lambda: told.append("closed"))
    seen = []
    observer = SimpleNamespace(evaluation_completed=seen.append)
    return EvaluationPublisher(run, host, (observer,)), measurements, seen, told


def test_an_evaluation_is_published_when_its_metrics_are_there(publisher):
    results, measurements, seen, told = publisher
    first, second = Future(), Future()
    assert not results.is_next_ready
    results.add(evaluated(10, first), 1.5, 2.5)
    assert not results.is_next_ready
    second.set_result({"map": 0.75})
    results.add(evaluated(20, second))
    assert (seen, measurements.parts.evaluations) == ([], ())
    results.publish_all(0.0)
    results.publish_all(0.01)
    assert seen == []
    first.set_result({"map": 0.25, "top_5": 1.0})
    assert results.is_next_ready
    results.publish_all()
    assert not results.is_next_ready
    assert tuple(seen) == measurements.parts.evaluations
    assert [(one.loop_seconds, one.wall_seconds) for one in seen] == [(1.5, 2.5), (None, None)]
    assert [(one.top_1, one.top_5, one.metrics) for one in seen] == [
        (0.5, 1.0, {"map": 0.25}),
        (0.5, None, {"map": 0.75}),
    ]
    results.close()
    assert told == ["closed"]


@pytest.mark.parametrize("failed", [True, False])
def test_metrics_that_are_missing_at_the_end_are_left_out(failed, publisher):
    results, measurements, seen, told = publisher
    first, second, third = Future(), Future(), Future()
    for step, host in ((10, first), (20, second), (30, third)):
        results.add(evaluated(step, host))
    third.set_result({"map": 0.75})
    if failed:
        second.set_exception(BenchmarkError("no metrics"))
    first.set_result({"map": 0.25})
    with pytest.raises(BenchmarkError) if failed else nullcontext():
        results.publish()
    # The third is ready, but its line would be out of order.
    assert [one.global_step for one in seen] == [10]
    results.close()
    assert [(one.global_step, one.top_1, one.metrics) for one in seen] == [
        (10, 0.5, {"map": 0.25}),
        (20, 0.5, {}),
        (30, 0.5, {"map": 0.75}),
    ]
    assert measurements.parts.evaluations == tuple(seen)
    (text, name), closed = told
    assert (re.findall(r"\d+", text), name, closed) == (["20"], "eval_metrics", "closed")


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_nothing_waits_for_the_process_and_closing_ends_it(tmp_path):
    begun = tmp_path / "begun"
    body = f"open({str(begun)!r}, 'w').write(str(os.getpid())); import time; time.sleep(600)"
    plugins = failing(tmp_path, body)["plugin"].split(",")
    host = HostMetricsChildExecutor("own", "weather", plugins)
    waiting = host.submit({"told": np.zeros(3), "true": np.zeros(3)})
    never = host.submit({"told": np.zeros(3), "true": np.zeros(3)})
    until(lambda: begun.is_file() and begun.read_text())
    pid = int(begun.read_text())
    assert not waiting.done()
    host.close()
    assert not os.path.exists(f"/proc/{pid}")
    assert isinstance(waiting.exception(), BenchmarkError)
    assert never.cancelled()


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_the_process_ends_with_a_run_that_is_killed(tmp_path):
    begun = tmp_path / "begun"
    body = f"open({str(begun)!r}, 'w').write(str(os.getpid())); import time; time.sleep(600)"
    plugins = failing(tmp_path, body)["plugin"].split(",")
    code = (
        "import time\n"
        "from cnnbench.run.driver.host_metrics import HostMetricsChildExecutor\n"
        f"host = HostMetricsChildExecutor('own', 'weather', {plugins!r})\n"
        "host.submit({'told': [0.0], 'true': [0.0]})\n"
        "time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as run:
        try:
            pid = int(wait_for(begun))
        finally:
            run.kill()
    assert gone(pid)


def test_the_process_loads_no_tensorflow():
    code = (
        "import sys, cnnbench.run.driver.host_metrics\n"
        "from cnnbench.models import get_model\n"
        "get_model('ssd300', 'coco')\n"
        "print('tensorflow' in sys.modules)"
    )
    assert finished([sys.executable, "-c", code]).stdout == "False\n"
