"""Runs by workers in processes of their own, one run after the other.

A worker starts TensorFlow's server once, and all runs of a list share it.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from forked import Forked, be_brief, cnnbench, shorten_runs

from cnnbench.base.ports import ReservedPorts

# Rows of the global batch that have the label INFINITY of the network `poison`.
POISONED_ROWS = (2, 3)
INFINITY = 14
_LATE = 0.2  # seconds
_PATIENCE = 600.0  # seconds, ten times what an idle machine needs


@contextlib.contextmanager
def processes(programs, folder, environment=None):
    """Starts programs, a function and its arguments each, with logs; none survives the end."""
    with contextlib.ExitStack() as stack:
        started = []
        for number, (run, argv) in enumerate(programs):
            logs = (folder / f"out{number}", folder / f"err{number}")
            process = Forked(run, argv, *logs, folder, environment)
            started.append(stack.enter_context(process))
        yield started


def results_of(programs, runs, folder):
    """What the first programs wrote to result0.json and so on, once all have ended well.

    They find the runs in runs.json, in their working directory.
    """
    (folder / "runs.json").write_text(json.dumps(runs))
    with processes(programs, folder) as started:
        for number, process in enumerate(started):
            status = process.wait(_PATIENCE)
            assert status == 0, (folder / f"err{number}").read_text()[-2000:]
    return [json.loads(path.read_text()) for path in sorted(folder.glob("result?.json"))]


def run_in_workers(workers, runs, folder):
    """Results by run and worker; see `outcome`, and `labels_read` for those with "reads".

    Args:
      workers: how many processes.
      runs: flags of each run, as a dict; "{worker}" in a value becomes the worker's number, and
        with "reads" so many batches are read in place of a run. collective_all_reduce if no mode
        is given.
      folder: for logs and results.
    """
    with ReservedPorts(workers) as ports:
        hosts = ",".join(f"localhost:{port}" for port in ports.numbers)
        by_worker = results_of([(worker, [hosts, i]) for i in range(workers)], runs, folder)
    return [list(of_run) for of_run in zip(*by_worker, strict=True)]


def run_under_a_controller(runs, folder):
    """Results of runs by worker 0, whom worker 1 and a ps task serve; see `outcome`.

    Args:
      runs: flags of each run, as a dict; the first has the ps task, and all have equally many
        towers.
      folder: for logs and results.
    """
    first = [f"--{name}={value}" for name, value in runs[0].items()]
    with ReservedPorts(3) as ports:
        *hosts, ps = [f"localhost:{port}" for port in ports.numbers]
        job = [f"--worker_hosts={','.join(hosts)}", f"--ps_hosts={ps}", "--device=cpu"]
        served = [*first, *job]
        programs = [
            (worker, [",".join(hosts), 0, ps]),
            (cnnbench, [*served, "--job_name=worker", "--task_index=1"]),
            (cnnbench, [*served, "--job_name=ps"]),
        ]
        (found,) = results_of(programs, runs, folder)
    return found


def run_in_process(runs, folder):
    """Results of runs, one after the other, in one process that is not this one; see `outcome`."""
    (found,) = results_of([(in_process, [])], runs, folder)
    return found


def filled(flags, **parts):
    """The flags with "{name}" in their texts replaced."""

    def fill(value):
        for name, part in parts.items():
            value = value.replace(f"{{{name}}}", str(part)) if isinstance(value, str) else value
        return value

    return {name: fill(value) for name, value in flags.items()}


def poisoned(draw):
    """`draw_synthetic_rows` with the label INFINITY in `POISONED_ROWS`."""

    def drawn(rows, *arguments):
        import tensorflow as tf

        values = dict(draw(rows, *arguments))
        bad = tf.reduce_any(tf.equal(rows[:, None], tf.constant(POISONED_ROWS)[None]), axis=1)
        label = values["label"]
        values["label"] = tf.where(bad, tf.cast(INFINITY, label.dtype), label)
        return values

    return drawn


def labels_read(flags, steps):
    """The labels of the first training batches: by step, then by tower."""
    from cnnbench import BenchmarkCNN, Params

    built = BenchmarkCNN(Params.from_dict(flags)).build()
    read = [[batch.labels.numpy().tolist() for batch in built.inputs.next()] for _ in range(steps)]
    built.close()
    return read


def outcome(flags):
    """What a run came to: losses, evaluations, loss scale, error; see `poisoned` for that flag."""
    from cnnbench import BenchmarkCNN, Params
    from cnnbench.data import synthetic
    from cnnbench.errors import BenchmarkError

    flags = dict(flags)
    drawn = synthetic.draw_synthetic_rows
    rows = poisoned(drawn) if flags.pop("poisoned", False) else drawn
    benchmark = BenchmarkCNN(Params.from_dict(flags))
    error = ""
    try:
        with mock.patch.object(synthetic, "draw_synthetic_rows", rows):
            benchmark.run()
    except BenchmarkError as failure:
        error = str(failure)
    record = benchmark.record
    cluster = record.cluster
    return {
        "warmup_losses": record.warmup_losses,
        "losses": record.losses,
        "skipped": record.loss_scaling and record.loss_scaling.skipped_steps,
        "evaluations": [
            {"loss": e.loss, "examples": e.examples, "top_1": e.top_1, "step": e.global_step}
            for e in record.evaluations
        ],
        "loss_scale": record.loss_scaling and record.loss_scaling.end,
        "towers": record.placement.num_towers,
        "global_batch": record.batch.global_,
        "sent": cluster and [cluster.messages_per_step, cluster.bytes_per_step],
        "replica_checks": record.measured.replica_checks,
        "ended_by": record.ended_by,
        "error": error,
    }


def saved_values(folder):
    """The numbers in the newest checkpoint of a folder, by their keys."""
    import tensorflow as tf

    saved = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(folder)))
    dtypes = saved.get_variable_to_dtype_map()
    return {name: saved.get_tensor(name) for name, dtype in dtypes.items() if dtype != tf.string}


def bent():
    """A check of copies that finds one element changed once the timed steps have begun."""
    from cnnbench.run.driver.observers.replica_check import ReplicaCheck

    check = ReplicaCheck._check_replicas

    def checked(self, global_step):
        if global_step:
            first = self._variables[0].primary
            first.assign_add(1e-3 * (first * 0 + 1))
        check(self, global_step)

    return checked


@contextlib.contextmanager
def late():
    """Delays values sent to other processes until something waits for them.

    If nothing does, they arrive after the first step, or after the evaluation.
    """
    from cnnbench.run.driver import restore
    from cnnbench.run.driver.evaluation import Evaluator
    from cnnbench.run.step.train_step import TrainStep
    from cnnbench.variable_mgr import towers

    peers, releases = [], []

    def initialize(run, work):
        peers[:] = [task.device("cpu") for task in work.devices.job.peers]
        releases.append(stalled(peers))
        return own_initialize(run, work)

    def evaluate(self, *arguments):
        releases.append(stalled(peers))
        return ended(own_evaluate(self, *arguments))

    def ended(result):
        while releases:
            releases.pop()()
        return result

    def wait_for_assignments(devices):
        while releases:
            threading.Timer(_LATE, releases.pop()).start()
        own_wait(devices)

    own_initialize, own_evaluate = restore.restore_or_initialize, Evaluator.run
    own_step, own_wait = TrainStep.__call__, towers.wait_for_assignments
    with (
        mock.patch.object(restore, "restore_or_initialize", initialize),
        mock.patch.object(Evaluator, "run", evaluate),
        mock.patch.object(TrainStep, "__call__", lambda self, rate: ended(own_step(self, rate))),
        mock.patch.object(towers, "wait_for_assignments", wait_for_assignments),
    ):
        yield


def stalled(devices):
    """Lets operations on devices of other processes wait; returns what lets them go on."""
    import tensorflow as tf

    def queue():
        return tf.raw_ops.FIFOQueueV2(component_types=[tf.int32], shared_name="stalled")

    for device in devices:
        with tf.device(device):
            tf.raw_ops.QueueDequeueV2(handle=queue(), component_types=[tf.int32])

    @tf.function(autograph=False)
    def release():
        for device in devices:
            with tf.device(device):
                tf.raw_ops.QueueEnqueueV2(handle=queue(), components=[tf.constant(0)])

    return release.get_concrete_function()


def worker():
    """A worker, or with ps tasks the chief; its runs share the connection of the first.

    Its arguments are the addresses of the workers, its number, and the address of the ps task.
    """
    from cnnbench.machine import facts
    from cnnbench.records.run import Target
    from cnnbench.run.driver import membership
    from cnnbench.run.driver.membership import JobMembership
    from cnnbench.run.driver.observers.replica_check import ReplicaCheck
    from cnnbench.run.runtime import supervisor

    shorten_runs()
    be_brief()
    hosts, number, *ps = sys.argv[1:]
    ended = []
    end = JobMembership.report_run_end
    JobMembership.report_run_end = lambda self, *how: ended.append((self, how))
    membership._FAILURE_SECONDS = _PATIENCE  # until the others are done, however busy the machine
    check, reached = ReplicaCheck._check_replicas, Target.is_reached_by
    facts.collect = functools.cache(facts.collect)
    results = []
    for run in json.loads(Path("runs.json").read_text()):
        flags = {"variable_update": "collective_all_reduce", "device": "cpu"}
        flags |= filled(run, worker=number)
        delay = late if flags.pop("late", False) else contextlib.nullcontext
        ReplicaCheck._check_replicas = bent() if flags.pop("bent", "") == number else check
        reached_by = flags.pop("reached_by", None)
        Target.is_reached_by = (lambda *_, by=reached_by: by == number) if reached_by else reached
        if ps and flags["variable_update"] != "distributed_all_reduce":
            (flags["ps_hosts"],) = ps
        flags |= {"job_name": "worker", "worker_hosts": hosts, "task_index": int(number)}
        steps = flags.pop("reads", 0)
        with delay():
            results.append(labels_read(flags, steps) if steps else outcome(flags))
        JobMembership.connect = lambda self: None
        JobMembership.connect_tensorflow = lambda self, devices: devices
    Path(f"result{number}.json").write_text(json.dumps(results))
    if ended:  # as the last run ended: the other workers may still be in its last step
        end(ended[0][0], *ended[-1][1])
    if ps:
        supervisor.exit_without_cleanup(0)


def in_process():
    """The process of `run_in_process`."""
    shorten_runs()
    be_brief()
    runs = json.loads(Path("runs.json").read_text())
    Path("result0.json").write_text(json.dumps([outcome(run) for run in runs]))


def made_once(
    temporary: pytest.TempPathFactory, name: str, make: Callable[[Path], Any]
) -> tuple[Path, Any]:
    """A folder and what `make` returned for it, called by the process that asks first.

    pytest-xdist may deal out the tests of a file to several processes, each of which makes the
    fixtures of the file anew.

    Args:
      temporary: the fixture `tmp_path_factory`.
      name: of what is made, unlike any other.
      make: fills a folder; what it returns can be written as JSON.
    """
    base = temporary.getbasetemp()
    common = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    made = common / f"{name}.json"
    with (common / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            folder = Path(tempfile.mkdtemp(prefix=name, dir=common))
            made.write_text(json.dumps([str(folder), make(folder)]))
    folder, result = json.loads(made.read_text())
    return Path(folder), result


# Steps under one controller, as TensorFlow divides them among tasks. The chief is a process whose
# other tasks are servers in the same process: what TensorFlow sends does not depend on that.
WORKERS, PS = 4, 2


def counts_of(cases):
    """What the step of each case sends.

    Args:
      cases: flags, with the number of "workers" and of "ps" beside them.

    Returns:
      For each case "graph", messages and bytes as `cnnbench.run.observe.traffic` counts them,
      "sends", the messages in TensorFlow's graphs of the devices, "signals", those that only
      order operations, and "gradients", elements.
    """
    with ReservedPorts(WORKERS + PS) as ports, tempfile.TemporaryDirectory() as folder:
        (found,) = results_of([(counting, ports.numbers)], cases, Path(folder))
    return found


def _sends(graphs):
    """Values that one task sends another, and the signals that only order operations."""
    values = signals = 0
    for graph in graphs:
        made_by = {node.name: node.op for node in graph.node}
        for node in graph.node:
            if node.op == "_Send":
                ends = [node.attr[f"{end}_device"].s.decode() for end in ("send", "recv")]
                crossing = len({end.rpartition("/device:")[0] for end in ends}) - 1
                if made_by[node.input[0].partition(":")[0]] == "Const":
                    signals += crossing
                else:
                    values += crossing
    return values, signals


def _counted(flags, workers, ps):
    from cnnbench.flags import Params
    from cnnbench.plan import make_plan
    from cnnbench.run.driver.build import build
    from cnnbench.run.driver.console import Console
    from cnnbench.run.observe.graphs import collecting_partitions
    from cnnbench.run.observe.traffic import count_messages_and_bytes

    params = Params.from_dict(
        {
            **flags,
            **{"device": "cpu", "job_name": "worker"},
            **{"worker_hosts": ",".join(workers), "ps_hosts": ",".join(ps)},
        }
    )
    plan = make_plan(params)
    job = plan.place.job
    devices = SimpleNamespace(
        kind="cpu", job=job, towers=job.tower_devices, cpu=job.cpu_device, input_threads=0
    )
    built = build(plan, devices, Console.silent())
    built.manager.after_initialization()
    graphs = []
    with collecting_partitions(graphs):
        built.step(0.1)
    sends, signals = _sends(graphs)
    sent = count_messages_and_bytes(built.step.graph, job.num_workers)
    built.close()
    shapes = [variable.shape for variable in plan.network.spec.variables if variable.trainable]
    found = {"graph": list(sent), "sends": sends, "signals": signals}
    return {**found, "gradients": shapes}


def counting():
    """The process of `counts_of`; its arguments are ports."""
    import tensorflow as tf

    hosts = [f"localhost:{port}" for port in sys.argv[1:]]
    jobs = {"worker": hosts[:WORKERS], "ps": hosts[WORKERS:]}
    spec = tf.train.ClusterSpec(jobs)
    tasks = [(job, index) for job, own in jobs.items() for index in range(len(own))]
    servers = [
        tf.distribute.Server(spec, job_name=job, task_index=index) for job, index in tasks[1:]
    ]
    tf.config.experimental_connect_to_cluster(spec, job_name="worker", task_index=0)
    tf.config.set_soft_device_placement(False)
    results = []
    for case in json.loads(Path("runs.json").read_text()):
        workers, ps = case.pop("workers"), case.pop("ps", 0)
        results.append(_counted(case, jobs["worker"][:workers], jobs["ps"][:ps]))
    Path("result0.json").write_text(json.dumps(results))
    del servers
    os._exit(0)  # servers of TensorFlow cannot be stopped
