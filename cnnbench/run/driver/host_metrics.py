"""Computes metrics that need all examples of an evaluation.

The metrics are computed immediately or, with --collect_eval_results_async, in a child process while
the training continues. Each evaluation has its own child process, a new interpreter. It imports
this module, which does not load TensorFlow, finds the model by its name, and prints its result.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from cnnbench.base import plugins
from cnnbench.base.child import end_with_parent, exit_sentence
from cnnbench.errors import BenchmarkError, UsageError
from cnnbench.machine import repository
from cnnbench.models import Model, registry

if TYPE_CHECKING:
    from cnnbench.plan import RunPlan

Rows = Mapping[str, Any]
"""Values of `Model.host_rows` by name: NumPy arrays ``[examples, ...]``. May be empty."""


class HostMetricsExecutor:
    """Computes `Model.host_metrics` immediately in this process, instead of in a child process."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def submit(self, rows: Rows) -> Future[dict[str, float]]:
        """Computes metrics from the values of all examples; returns a future with the metrics.

        May raise the exceptions of the computation.
        """
        done: Future[dict[str, float]] = Future()
        done.set_result(_compute(self._model, rows))
        return done

    def close(self) -> None:
        """Cancels unfinished computations. In this class, `submit` leaves none unfinished."""


class HostMetricsChildExecutor(HostMetricsExecutor):
    """Computes `Model.host_metrics` in a child process, for one evaluation after another.

    Args:
      model, dataset: names with which the child process finds the model.
      files: paths of plug-ins, which the child process loads first.
    """

    def __init__(self, model: str, dataset: str, files: Sequence[str] = ()) -> None:
        self._arguments = (model, dataset, files)
        # A separate thread waits for the child process, so that `submit` returns at once.
        self._thread = ThreadPoolExecutor(1, "host-metrics")
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def submit(self, rows: Rows) -> Future[dict[str, float]]:
        """Starts a child process; returns a future with the metrics, or with a BenchmarkError."""
        return self._thread.submit(self._compute_in_child, rows)

    def close(self) -> None:
        """Ends the child process, if there is one. A second call does nothing."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                with contextlib.suppress(ProcessLookupError):
                    # Kills the whole process group, because processes that the child has started
                    # keep its pipes open.
                    os.killpg(self._process.pid, signal.SIGKILL)
        self._thread.shutdown(cancel_futures=True)

    def _compute_in_child(self, rows: Rows) -> dict[str, float]:
        # With the import path of this process, the child finds the same plug-ins.
        main = f"import {__name__} as m; m.main({os.getpid()})"
        code = f"import sys; sys.path[:] = {sys.path!r}; {main}"
        with self._lock:
            if self._closed:
                return {}
            self._process = process = subprocess.Popen(
                # With -u (unbuffered), the output of a plug-in comes before its error message.
                [sys.executable, "-u", "-c", code],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**repository.environment_for_git(), "CUDA_VISIBLE_DEVICES": ""},
                # A session of its own, so that Ctrl-C does not reach the child: the run ends the
                # child.
                start_new_session=True,
            )
        output, printed = process.communicate(pickle.dumps((self._arguments, dict(rows))))
        errors = printed.decode(errors="replace")
        with self._lock:
            self._process = None
        if process.returncode != 0:
            raise BenchmarkError(_describe_failure(self._arguments[0], process.returncode, errors))
        if not output:
            failure = _describe_failure(self._arguments[0], 0, errors)
            raise BenchmarkError(f"no metrics were computed: {failure}")
        metrics: dict[str, float] = json.loads(output)
        return metrics


def make_host_metrics(plan: RunPlan) -> HostMetricsExecutor:
    """Creates the executor that computes the metrics that need all examples of an evaluation."""
    if not plan.metrics_in_child:
        return HostMetricsExecutor(plan.network.model)
    files = plugins.plugin_files_of_flags(vars(plan.params))
    return HostMetricsChildExecutor(plan.params.model, plan.network.dataset.name, files)


def main(parent: int) -> None:
    """Main program of the child process: reads model and rows, prints the metrics as JSON.

    `parent` is the PID of the run: the child process ends when the run ends.
    """
    end_with_parent(parent)
    # Output of plug-ins goes to standard error, because the parent reads only the result from
    # standard output.
    result = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    (model, dataset, files), rows = pickle.load(sys.stdin.buffer)
    try:
        with plugins.reporting_plugin_errors(BenchmarkError):
            for path in files:
                plugins.load_plugin_file(path)
            metrics = _compute(registry.get_model(model, dataset), rows)
    except (UsageError, BenchmarkError) as error:
        sys.exit(str(error))
    with result:
        json.dump(metrics, result)


def _compute(model: Model, rows: Rows) -> dict[str, float]:
    metrics = model.host_metrics(rows) if rows else {}
    return {name: float(value) for name, value in metrics.items()}


def _describe_failure(model: str, status: int, errors: str) -> str:
    ending = exit_sentence(f"the process that computes metrics of {model}", status)
    last = next((line.strip() for line in reversed(errors.splitlines()) if line.strip()), "")
    return f"{ending}{last and ': '}{last}"
