"""``cnnbench launch``: refusals, what is printed and kept, and jobs that leave nothing."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from covering import slow_if
from forked import gone

from cnnbench import cli
from cnnbench.base.locks import LOGS, FolderLock, TemporaryFolder
from cnnbench.campaigns import job_session as session
from cnnbench.campaigns.processes import child

FAKE = Path(__file__).with_name("fake_task.py")
LENET = ("--", "--model=lenet", "--device=cpu")
# The fakes do not notice the loss of others; those that ignore signals need not be waited for.
QUICK = {"AFTER_SUCCESS": 3.0, "AFTER_FAILURE": 0.5, "AFTER_LOSS": 0.5, "AT_ONCE": 2.0}
IMPATIENT = dict.fromkeys(QUICK, 0.3)

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def launch(monkeypatch, temporary_folders, capfdbinary, tmp_path_factory, tmp_path):
    """launch("--workers=2", ...): exit code, stdout and stderr of a job of fakes.

    `do` says what they do (see fake_task.py). None of them is alive afterwards; what each was
    started with is in launch.tasks.
    """
    folder = tmp_path_factory.mktemp("fakes")
    monkeypatch.setenv("FAKE_FOLDER", str(folder))
    monkeypatch.setenv("FAKE_LAUNCH", str(os.getpid()))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    temporary_folders(tmp_path)
    monkeypatch.chdir(tmp_path)

    def run(*words, do="", program=(sys.executable, "-IS", str(FAKE))):
        monkeypatch.setenv("FAKE_DO", do)
        monkeypatch.setattr("cnnbench.campaigns.launch.own_command_prefix", lambda: program)
        for name, seconds in (IMPATIENT if "ignore" in do else QUICK).items():
            monkeypatch.setattr(session, name, seconds)
        if {"ignore", "slow", "endless"} & {deed.partition("=")[2] for deed in do.split(",")}:
            monkeypatch.setattr(child, "interrupt_grace_seconds", lambda: 0.5)
        status = cli.main(["launch", *words])
        run.tasks = {}
        for file in folder.glob("*:*"):
            run.tasks[file.name] = told = json.loads(file.read_text())
            assert gone(told["process"])
            with socket.create_server(("", told["port"])):  # nobody listens there
                file.unlink()
        out, err = capfdbinary.readouterr()
        return status, out, err.decode(errors="replace")

    return run


def test_a_job(launch, tmp_path):
    status, out, err = launch("--workers=2", "--ps=1", *LENET)
    assert (status, out) == (0, b"chief\xff\r 1\n\n 2 no end")  # byte for byte, nothing else
    lines = err.splitlines()
    assert len(lines) == 5
    assert "[worker:0] to stderr  [31mred [0m" in lines
    for task in ("worker:1", "ps:0"):
        assert sum(line.startswith(f"[{task}] to stdout") for line in lines) == 1
    assert list(tmp_path.iterdir()) == []


def test_every_process_gets_the_job_and_its_place_in_it(launch):
    flags = [*LENET[1:], "--variable_update=parameter_server_strategy"]
    assert launch("--workers=2", "--ps=1", "--towers=1", "--", *flags)[0] == 0
    hosts = {task: f"localhost:{told['port']}" for task, told in launch.tasks.items()}
    assert sorted(hosts) == ["controller:0", "ps:0", "worker:0", "worker:1"]
    for task, told in launch.tasks.items():
        job, _, index = task.partition(":")
        assert told["words"] == [
            *("run", *flags, f"--worker_hosts={hosts['worker:0']},{hosts['worker:1']}"),
            *(f"--ps_hosts={hosts['ps:0']}", f"--controller_host={hosts['controller:0']}"),
            *(f"--job_name={job}", f"--task_index={index}", "--num_gpus=1"),
        ]


def test_a_job_can_measure_reductions(launch):
    words = ("allreduce", "--sizes=4K", "--device=cpu")
    assert launch("--workers=2", "--towers=3", "--", *words)[0] == 0
    for told in launch.tasks.values():
        assert told["words"][:3] == [*words]
        assert told["words"][-1] == "--num_gpus=3"


def test_workers_get_gpus_of_their_own(launch, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    assert launch("--workers=2", "--ps=1", "--", "--model=lenet", "--num_gpus=2")[0] == 0
    found = [launch.tasks[task]["gpus"] for task in ("worker:0", "worker:1", "ps:0")]
    assert found == ["0,1", "2,3", "0,1,2,3"]


def test_logs_in_a_folder_of_ones_own(launch, tmp_path):
    assert launch("--workers=2", "--ps=1", "--log_dir=a/b", *LENET)[0] == 0
    logs = {path.name: path.read_text() for path in (tmp_path / "a" / "b").iterdir()}
    assert sorted(logs) == ["ps-0.log", "worker-0.log", "worker-1.log"]
    assert "\x1b[31mred" in logs["ps-0.log"]


def test_a_controller_is_the_chief(launch):
    mode = ("--variable_update=distributed_all_reduce", "--all_reduce_spec=xring")
    status, out, err = launch("--controller", *LENET, *mode)
    assert (status, out[:5]) == (0, b"chief")
    assert "[worker:0] to stdout" in err


@pytest.mark.parametrize(
    ("do", "status", "failed"),
    [
        ("worker:0=2", 2, ["worker:0"]),
        ("worker:1=abort", 4, ["worker:1"]),
        # The chief does not end, not even on request.
        ("worker:1=4,worker:0=ignore", 4, ["worker:0", "worker:1"]),
        # The chief has ended, another does not.
        ("ps:0=ignore", 4, ["ps:0"]),
    ],
)
def test_one_that_fails_ends_all_and_logs_are_kept(launch, do, status, failed):
    found, _, err = launch("--workers=2", "--ps=1", *LENET, do=do)
    assert found == status
    logs = dict(re.findall(r"^cnnbench: error: (\w+:\d) .*; (\S+)$", err, re.MULTILINE))
    assert all("to std" in Path(logs[task]).read_text() for task in failed)
    assert ("Check failed: a == b" in err) == ("abort" in do)


def test_the_others_go_on_without_a_worker_that_the_job_spares(launch):
    words = ("--workers=2", "--ps=1", *LENET, "--cross_replica_sync=false")
    status, _, err = launch(*words, do="worker:1=kill")
    assert status == 0
    assert re.findall(r"^cnnbench: error: (\S+) ", err, re.MULTILINE) == ["worker:1"]
    assert launch(*words, do="worker:1=kill,ps:0=3")[0] == 4


def test_a_program_that_is_not_there(launch):
    status, _, err = launch("--workers=2", "--ps=1", *LENET, program=("/no/such/program",))
    assert status == 4
    assert re.search("^cnnbench: error: worker:0 .*/no/such/program: ", err, re.MULTILINE)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_affinity(launch):
    mode = "--variable_update=collective_all_reduce"
    cores = sorted(os.sched_getaffinity(0))
    status, _, err = launch("--workers=2", "--affinity", *LENET, mode)
    assert status == 0
    (line,) = [line for line in err.splitlines() if "to stdout" in line]
    assert line == f"[worker:1] to stdout {cores[len(cores) // 2 :]}"
    assert sorted(os.sched_getaffinity(0)) == cores


@pytest.mark.parametrize("chief", slow_if(["ignore"], ["sleep", "ignore"]))
def test_an_interrupt_ends_all_lets_the_chief_write_and_keeps_nothing(launch, tmp_path, chief):
    do = f"worker:1=interrupt,worker:0={chief},ps:0={chief}"
    status, _, err = launch("--workers=2", "--ps=1", *LENET, do=do)
    assert status == 130
    assert ("[worker:0] interrupted" in err) == (chief == "sleep")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("chief", "least"), slow_if([("endless", 4.0)], [("slow", 1.5), ("endless", 4.0)])
)
def test_a_chief_has_the_time_that_it_announces(launch, chief, least):
    began = time.monotonic()
    status, _, err = launch("--ps=1", *LENET, do=f"ps:0=interrupt,worker:0={chief}")
    assert status == 130
    assert "[worker:0] cnnbench: interrupted; waiting up to 2 s for the running step" in err
    assert ("[worker:0] interrupted" in err) == (chief == "slow")
    assert least < time.monotonic() - began < 30


KILLED = """
import os, sys
from cnnbench.base.locks import FolderLock, TemporaryFolder
FolderLock(sys.argv[1]) if sys.argv[1:] else print(TemporaryFolder("cnnbench-launch-").path, end="")
sys.stdout.flush()
os.kill(os.getpid(), 9)
"""


def _killed(*folder):
    """A folder locked by a process that was killed; by default its temporary one."""
    words = [sys.executable, "-c", KILLED, *map(str, folder)]
    made = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=60, check=False).stdout
    return Path(made or folder[0])


def test_folders_of_launches_that_were_killed_are_removed(launch, tmp_path):
    with TemporaryFolder("cnnbench-launch-") as lives:
        _made(tmp_path / "cnnbench-launch-kept1234")
        assert _killed().parent == tmp_path
        assert launch("--ps=1", *LENET)[0] == 0
        names = {path.name for path in tmp_path.iterdir()}
        assert names == {lives.path.name, "cnnbench-launch-kept1234"}


def test_no_folder_of_a_user_is_removed(launch, tmp_path):
    """Whatever its name: of checkpoints of a killed run, and what a flag names."""
    own = [_made(tmp_path / name) for name in ("cnnbench-ckpt", "cnnbench-launch-abcd1234")]
    for folder in own:
        _killed(folder)
    (tmp_path / "link").symlink_to(_killed())
    assert launch("--ps=1", "--log_dir=link", *LENET)[0] == 0
    assert launch("--ps=1", *LENET)[0] == 0
    assert all((folder / "worker-0.log").read_text() == "printed" for folder in own)
    assert (tmp_path / "link" / "worker-0.log").exists()


def _made(folder):
    folder.mkdir()
    (folder / "worker-0.log").write_text("printed")
    return folder


def test_a_second_launch_into_a_folder_of_logs_is_refused(launch, tmp_path):
    logs = _made(tmp_path / "logs")
    with FolderLock(logs, file=LOGS):
        status, out, err = launch("--ps=1", "--log_dir=logs", *LENET)
    assert (status, out, err.count("\n")) == (2, b"", 1)
    assert re.match(f"cnnbench: error: --log_dir=logs: .* {os.getpid()} ", err)
    assert [path.name for path in logs.iterdir()] == ["worker-0.log"]
    assert (logs / "worker-0.log").read_text() == "printed"
    with FolderLock(logs):  # of the checkpoints that are there too
        assert launch("--ps=1", "--log_dir=logs", *LENET)[0] == 0
