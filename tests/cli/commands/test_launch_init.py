"""launch --init: the files for Slurm and Kubernetes, as far as they can be tried without either.

Tests cnnbench/cli/commands/launch.py.
"""

from __future__ import annotations

import json
import os
import re
import sys
from importlib.util import find_spec

import pytest
import yaml
from forked import finished

from cnnbench.plan import parse_run

pytestmark = pytest.mark.timeout(60)

# Runs a command for the first and the last task of two machines, as srun does.
SRUN = """#!/bin/bash
[ "$1" = "--kill-on-bad-exit=1" ] || exit 9
shift
export SLURM_JOB_ID=1 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=n[1-2] SLURM_NTASKS=4
for task in 0 3; do SLURM_PROCID=$task SLURM_LOCALID=$((task % 2)) "$@" || exit 1; done
"""
CNNBENCH = f"""#!{sys.executable}
import json, os, sys
from cnnbench.base.launcher import resolve_job
flags = dict(word[2:].split("=") for word in sys.argv[1:])
job, _ = resolve_job(flags["cluster"], int(flags["cluster_ps"]), os.environ)
print(json.dumps([str(job.task), job.worker_addresses, job.ps_addresses, flags]))
"""


OWN = ("--model=lenet", "--batch_size=32", "--trace_file=/results/it's $(HOME) \"x")


@pytest.fixture
def written(call, tmp_path, monkeypatch):
    """written(SYSTEM, FLAG...): the path of the file that launch --init writes."""
    monkeypatch.chdir(tmp_path)

    def written(system, *flags, own=OWN):
        done = call("launch", f"--init={system}", *flags, "--", *own)
        return tmp_path / done.out.strip()

    return written


def test_slurm(tmp_path, written):
    file = written("slurm", "--workers=3", "--ps=1", "--towers=2")
    assert "#SBATCH --nodes=4\n" in file.read_text()
    for name, text in (("srun", SRUN), ("cnnbench", CNNBENCH)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "CNNBENCH": "cnnbench"}
    done = finished(("bash", file, "--num_batches=7"), cwd=tmp_path, environment=environment)
    tasks = [json.loads(line) for line in done.stdout.splitlines()]
    assert [task for task, *_ in tasks] == ["worker:0", "ps:0"]
    assert len({json.dumps(rest) for _, *rest in tasks}) == 1
    flags = tasks[0][3]
    assert (flags["model"], flags["num_gpus"], flags["num_batches"]) == ("lenet", "2", "7")
    assert flags["trace_file"] == "/results/it's $(HOME) \"x"


def test_slurm_options_come_before_commands(written):
    lines = written("slurm", "--workers=2").read_text().splitlines()
    options = [number for number, line in enumerate(lines) if line.startswith("#SBATCH --")]
    commands = [number for number, line in enumerate(lines) if re.match(r"[^#\s]", line)]
    assert len(options) == 6
    assert max(options) < min(commands)


@pytest.fixture
def documents(written):
    text = written("kubernetes", "--workers=2", "--ps=1").read_text()
    return {one["kind"]: one for one in yaml.safe_load_all(text)}


def test_kubernetes(documents, monkeypatch):
    job = documents["Job"]
    spec = job["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    service = documents["Service"]
    # Kubernetes replaces $(NAME), and $$( by $(.
    words = [word.replace("$$(", "$(") for word in container["args"]]
    assert words == ["--cluster=kubernetes", *OWN, "--cluster_ps=1"]
    for one in container["env"]:
        monkeypatch.setenv(one["name"], one["value"])
    tasks = []
    for index in range(spec["completions"]):
        monkeypatch.setenv("HOSTNAME", f"{job['metadata']['name']}-{index}")
        tasks.append(parse_run(words).params)
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


@pytest.mark.parametrize(
    ("flags", "gpus"),
    [
        (("--model=lenet",), 1),
        (("--model=lenet", "--num_gpus=8"), 8),
        (("--model=lenet", "--device=cpu", "--num_gpus=8"), 0),
    ],
)
def test_processes_request_the_gpus_that_they_use(written, flags, gpus):
    text = written("slurm", "--workers=2", own=flags).read_text()
    assert re.findall(r"^#SBATCH --gpus\S*", text, re.M) == (
        [f"#SBATCH --gpus-per-node={gpus}"] if gpus else []
    )
    text = written("kubernetes", "--workers=2", own=flags).read_text()
    assert "@" not in text
    (job,) = (one for one in yaml.safe_load_all(text) if one["kind"] == "Job")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    limits = {"limits": {"nvidia.com/gpu": gpus}} if gpus else {}
    assert container["resources"] == {"requests": {"cpu": "4", "memory": "8Gi"}, **limits}


def test_pods_have_a_volume_if_they_write_files(documents, written, tmp_path):
    pod = documents["Job"]["spec"]["template"]["spec"]
    (volume,) = pod["volumes"]
    (mount,) = pod["containers"][0]["volumeMounts"]
    assert (mount["name"], mount["mountPath"]) == (volume["name"], "/results")
    (tmp_path / "kubernetes.yaml").unlink()
    assert "volume" not in written("kubernetes", "--workers=2", own=("--model=lenet",)).read_text()


@pytest.mark.skipif(find_spec("kubernetes_validate") is None, reason="needs kubernetes-validate")
def test_kubernetes_by_its_schema(documents):
    import kubernetes_validate

    for document in documents.values():
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--init=slurm",), "--workers=1: with --init, must be at least 2"),
        (("--init=pbs", "--workers=2"), "--init=pbs: must be one of slurm, kubernetes"),
        (("--init=slurm", "--workers=2", "--affinity"), "--affinity=true: cannot be used with"),
        (
            ("--init=slurm", "--workers=2", "--", "--variable_update=parameter_server_strategy"),
            "not a job with a controller",
        ),
        (
            ("--init=kubernetes", "--workers=2", "--", "--result_json=r.json"),
            "--result_json=r.json: with --init=kubernetes, must be below /results",
        ),
        (
            ("--init=kubernetes", "--workers=2", "--", "--train_dir=/results/../t"),
            "the volume of the pods, or a URL",
        ),
        (("--init=slurm", "--workers=2", "--", "allreduce"), "not allreduce"),
        (("--init=slurm", "--workers=2", "--", "--model=nosuch"), "--model=nosuch: "),
        (("--init=slurm", "--workers=2", "--", "--trace_file=a\nb"), "contains a line break"),
    ],
)
def test_wrong_use_writes_nothing(call, tmp_path, monkeypatch, words, reason):
    monkeypatch.chdir(tmp_path)
    done = call("launch", *words, code=2)
    assert reason in done.err
    assert [*tmp_path.iterdir()] == []


def test_a_file_is_not_replaced(call, written, tmp_path):
    (tmp_path / "slurm.sbatch").write_text("mine")
    done = call("launch", "--init=slurm", "--workers=2", "--", *OWN, code=2)
    assert "slurm.sbatch exists; remove or rename it" in done.err
    assert (tmp_path / "slurm.sbatch").read_text() == "mine"
