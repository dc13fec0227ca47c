"""Steps under one controller as TensorFlow divides them among tasks, counted.

`program` is the chief of a job whose other tasks are servers in the same process: what
TensorFlow sends does not depend on that.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

from forked import Forked

from cnnbench.base.jobs.ports import ReservedPorts

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
        out, err = (Path(folder) / name for name in ("out", "err"))
        process = Forked(program, [json.dumps(ports.numbers), json.dumps(cases)], out, err)
        try:
            assert process.wait(150) == 0, err.read_text()[-3000:]
        finally:
            process.kill()
        return json.loads(out.read_text())


def _sends(folder):
    """Values that one task sends another, and the signals that only order operations."""
    import tensorflow as tf

    message = type(tf.Graph().as_graph_def())
    values = signals = 0
    for path in Path(folder).iterdir():
        graph = message.FromString(path.read_bytes())
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
    from cnnbench.flags import Params, validate
    from cnnbench.run.driver.build import Assembly
    from cnnbench.run.driver.console import Console
    from cnnbench.run.driver.plan import make_plan
    from cnnbench.run.observe.graphs import writing_partitions
    from cnnbench.run.observe.traffic import traffic

    params = Params.from_dict(
        {
            **flags,
            **{"device": "cpu", "job_name": "worker"},
            **{"worker_hosts": ",".join(workers), "ps_hosts": ",".join(ps)},
        }
    )
    validate(params)
    plan = make_plan(params)
    job = plan.job
    devices = SimpleNamespace(kind="cpu", job=job, towers=job.tower_devices, cpu=job.cpu_device)
    built = Assembly(params, plan, devices).build(Console.silent())
    built.manager.after_initialization()
    built.step.set_learning_rate(0.1)
    with tempfile.TemporaryDirectory() as folder:
        with writing_partitions("partitioned_graph_file_prefix", f"{folder}/part-{{}}".format, []):
            built.step()
        sends, signals = _sends(folder)
    sent = traffic(built.step.graph, job.num_workers)
    built.close()
    shapes = [variable.shape for variable in plan.spec.variables if variable.trainable]
    found = {"graph": [sent.messages, sent.bytes], "sends": sends, "signals": signals}
    return {**found, "gradients": shapes}


def main(ports, cases):
    import tensorflow as tf

    hosts = [f"localhost:{port}" for port in ports]
    jobs = {"worker": hosts[:WORKERS], "ps": hosts[WORKERS:]}
    spec = tf.train.ClusterSpec(jobs)
    tasks = [(job, index) for job, own in jobs.items() for index in range(len(own))]
    servers = [
        tf.distribute.Server(spec, job_name=job, task_index=index) for job, index in tasks[1:]
    ]
    tf.config.experimental_connect_to_cluster(spec, job_name="worker", task_index=0)
    tf.config.set_soft_device_placement(False)
    results = []
    for case in cases:
        workers, ps = case.pop("workers"), case.pop("ps", 0)
        results.append(_counted(case, jobs["worker"][:workers], jobs["ps"][:ps]))
    print(json.dumps(results), flush=True)
    del servers
    os._exit(0)  # servers of TensorFlow cannot be stopped


def program():
    """The process of `counts_of`: `main` with its arguments."""
    main(*map(json.loads, sys.argv[1:]))
