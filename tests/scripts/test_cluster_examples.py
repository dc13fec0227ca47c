"""The examples for Slurm and Kubernetes, as far as they can be tried without either."""

from __future__ import annotations

import json
import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from forked import finished

from cnnbench.plan import parse_run

SCRIPTS = Path(__file__).parents[2] / "scripts"
SLURM = SCRIPTS / "slurm.sbatch"
KUBERNETES = SCRIPTS / "kubernetes.yaml"

pytestmark = pytest.mark.timeout(60)

# Runs a command for the first and the last task of two machines, as srun does.
SRUN = """#!/bin/bash
[ "$1 $2" = "--distribution=block --kill-on-bad-exit=1" ] || exit 9
shift 2
export SLURM_JOB_ID=1 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=n[1-2] SLURM_NTASKS=4
export SLURM_STEP_TASKS_PER_NODE="2(x2)"
for task in 0 3; do SLURM_PROCID=$task SLURM_LOCALID=$((task % 2)) "$@" || exit 1; done
"""
CNNBENCH = f"""#!{sys.executable}
import json, os, sys
from cnnbench.base.rendezvous import resolve_job
flags = dict(word[2:].split("=") for word in sys.argv[1:])
job, _ = resolve_job(flags["cluster"], int(flags["cluster_ps"]), os.environ)
print(json.dumps([str(job.task), job.worker_addresses, job.ps_addresses, flags]))
"""


def test_slurm(tmp_path):
    for name, text in (("srun", SRUN), ("cnnbench", CNNBENCH)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "CNNBENCH": "cnnbench"}
    words = ("bash", SLURM, "--model=lenet", "--cluster_ps=1")
    done = finished(words, cwd=SCRIPTS.parent, environment=environment)
    tasks = [json.loads(line) for line in done.stdout.splitlines()]
    assert [task for task, *_ in tasks] == ["worker:0", "ps:0"]
    assert len({json.dumps(rest) for _, *rest in tasks}) == 1
    assert tasks[0][3]["model"] == "lenet"


def test_slurm_options_come_before_commands():
    lines = SLURM.read_text().splitlines()
    options = [number for number, line in enumerate(lines) if line.startswith("#SBATCH --")]
    commands = [number for number, line in enumerate(lines) if re.match(r"[^#\s]", line)]
    assert len(options) == 5
    assert max(options) < min(commands)


@pytest.fixture(scope="module")
def documents():
    return {one["kind"]: one for one in yaml.safe_load_all(KUBERNETES.read_text())}


def test_kubernetes(documents, monkeypatch):
    job = documents["Job"]
    spec = job["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    service = documents["Service"]
    for one in container["env"]:
        monkeypatch.setenv(one["name"], one["value"])
    tasks = []
    for index in range(spec["completions"]):
        monkeypatch.setenv("HOSTNAME", f"{job['metadata']['name']}-{index}")
        tasks.append(parse_run(container["args"]).params)
    places = [(params.job_name, params.task_index) for params in tasks]
    assert places == [("worker", 0), ("worker", 1), ("ps", 0)]
    ((workers, _),) = {(params.worker_hosts, params.ps_hosts) for params in tasks}
    (port,) = service["spec"]["ports"]
    name = service["metadata"]["name"]
    hosts = [f"{job['metadata']['name']}-{index}.{name}:{port['port']}" for index in (0, 1)]
    assert workers == ",".join(hosts)
    assert container["ports"][0]["containerPort"] == port["port"]
    assert pod["subdomain"] == name
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"]
    # The label that Kubernetes gives the pods of a job.
    label = {"job-name": job["metadata"]["name"]}
    policy = documents["NetworkPolicy"]["spec"]
    assert service["spec"]["selector"] == policy["podSelector"]["matchLabels"] == label
    assert service["spec"]["clusterIP"] == "None"


@pytest.mark.skipif(find_spec("kubernetes_validate") is None, reason="needs kubernetes-validate")
def test_kubernetes_by_its_schema(documents):
    import kubernetes_validate

    for document in documents.values():
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
