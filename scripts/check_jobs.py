"""Runs jobs on three hosts under real launchers, and checks how each job ends.

Usage: scripts/check_jobs [OPTIONS]

The hosts are network namespaces of this machine, each with its own addresses, ports and host name
(scripts/hosts). On them run a real Slurm, Open MPI 4 and 5, and MPICH. Each row of the table is a
job, or a job with a mistake, a fault or a stranger. A row holds if all processes end in time with
the expected exit codes, the record has the expected status and reason, and the losses are equal to
the losses of `cnnbench launch` with the same flags.

Needs Linux, root, and the Debian packages of --packages. Rows whose launcher is missing are
skipped. For Open MPI 5 and mpi4py, a package index is needed.

The exit status is 0 if all rows hold, 1 if not.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from command_line import parse_options, run_script

from cnnbench.flags.declare import flag

HOSTS = Path(__file__).parent / "hosts"
PACKAGES = ("slurm-wlm", "munge", "openmpi-bin", "mpich", "iproute2", "nftables")
CNNBENCH = (sys.executable, "-m", "cnnbench")
PORT = 5000
SECONDS = 90.0
"""Time limit of a job that trains, on two cores."""
TOGETHER = 2.0
"""Seconds within which a refusal must reach all processes that are there."""


class Problem(Exception):
    """What a row shows instead of what it should."""


class Layout(NamedTuple):
    """Processes of a job and its mode; two jobs with the same layout have the same losses."""

    workers: int
    mode: str = "collective_all_reduce"
    ps: int = 0
    controller: bool = False

    @property
    def size(self) -> int:
        """The number of processes."""
        return self.workers + self.ps + self.controller

    def flags(self, steps: int = 8) -> tuple[str, ...]:
        """The flags of every process."""
        return (
            "--device=cpu",
            "--model=trivial",
            "--batch_size=4",
            f"--num_batches={steps}",
            "--num_warmup_batches=1",
            "--display_every=1",
            "--num_intra_threads=1",
            "--quiet_conditions=all",
            f"--variable_update={self.mode}",
        )

    def tasks(self) -> list[tuple[str, int]]:
        """The job name and the number of each process."""
        names = ["worker"] * self.workers + ["ps"] * self.ps + ["controller"] * self.controller
        return [(name, names[:at].count(name)) for at, name in enumerate(names)]


RING2, RING3, RING4 = Layout(2), Layout(3), Layout(4)
SERVED = Layout(2, "parameter_server", ps=1)
DRIVEN = Layout(2, "distributed_replicated", ps=1)
COORDINATED = Layout(1, "parameter_server_strategy", ps=1, controller=True)


@dataclass
class Process:
    """A started process, its name in messages, and the files of its output."""

    name: str
    popen: subprocess.Popen[bytes]
    folder: Path
    ended: float = math.inf

    def text(self) -> str:
        """What the process has printed on standard output and standard error."""
        return (self.folder / f"{self.name}.log").read_text(errors="replace")

    def wait_for(self, pattern: str, seconds: float = SECONDS) -> None:
        """Waits until the process has printed a line with `pattern`."""
        deadline = time.monotonic() + seconds
        while not re.search(pattern, self.text()):
            if self.popen.poll() is not None or time.monotonic() > deadline:
                raise Problem(f"{self.name} never printed {pattern}: {last_line(self.text())}")
            time.sleep(0.05)

    def kill(self) -> None:
        """Kills the whole process group with SIGKILL."""
        self.send(signal.SIGKILL)

    def send(self, number: int) -> None:
        """Sends a signal to the whole process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, number)


def last_line(text: str) -> str:
    """Returns the last line of a log."""
    return (text.strip().splitlines() or ["(nothing)"])[-1][:300]


@dataclass
class Lab:
    """The hosts, and a folder for the files of the current row."""

    state: Path
    folder: Path = Path()
    references: dict[Layout, list[float]] = field(default_factory=dict)

    def run(self, *words: str | Path) -> str:
        """Runs a short command and returns its standard output. Problem if it fails."""
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
        if done.returncode:
            raise Problem(f"{shlex.join(map(str, words))}: {done.stderr.strip()}")
        return done.stdout

    def start(
        self,
        name: str,
        words: Sequence[str],
        host: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Process:
        """Starts a process on a host, or on this machine if `host` is None."""
        before = [str(HOSTS / "hosts"), "run", host] if host else []
        variables = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **(env or {})}
        variables["PYTHONUNBUFFERED"] = "1"
        with (self.folder / f"{name}.log").open("wb") as log:
            popen = subprocess.Popen(
                [*before, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=variables,
                cwd=self.folder,
                start_new_session=True,
            )
        return Process(name, popen, self.folder)

    @functools.cached_property
    def has_slurm(self) -> bool:
        """Whether Slurm is installed and has started."""
        if shutil.which("slurmctld") is None:
            return False
        with contextlib.suppress(Problem):
            words = ("sinfo", "--noheader", "--states=idle", "--format=%D")
            return self.run("env", f"SLURM_CONF={slurm_conf()}", *words).strip() == "3"
        return False

    @property
    def record_path(self) -> Path:
        """The record of the row's job."""
        return self.folder / "record.json"

    def reference(self, layout: Layout) -> list[float]:
        """Returns the losses of `cnnbench launch` with this layout."""
        if layout not in self.references:
            path = self.folder / "reference.json"
            own = [f"--workers={layout.workers}", f"--ps={layout.ps}"]
            words = [*CNNBENCH, "launch", *own, "--", *layout.flags(), f"--result_json={path}"]
            self.run("env", "CUDA_VISIBLE_DEVICES=", *words)
            self.references[layout] = json.loads(path.read_text())["losses"]
        return self.references[layout]


def wait(processes: Sequence[Process], seconds: float) -> None:
    """Waits until all processes have ended. Problem if they have not after `seconds`."""
    deadline = time.monotonic() + seconds
    while any(process.ended == math.inf for process in processes):
        for process in processes:
            if process.ended == math.inf and process.popen.poll() is not None:
                process.ended = time.monotonic()
        if time.monotonic() > deadline:
            late = [one for one in processes if one.ended == math.inf]
            raise Problem(
                "; ".join(f"{one.name} hangs after: {last_line(one.text())}" for one in late)
            )
        time.sleep(0.02)


def check_codes(processes: Sequence[Process], *allowed: int) -> None:
    """Problem if a process has ended with another exit code."""
    for process in processes:
        if process.popen.returncode not in allowed:
            code = process.popen.returncode
            raise Problem(f"{process.name} ended with {code}: {last_line(process.text())}")


def check_trained(lab: Lab, processes: Sequence[Process], layout: Layout) -> None:
    """Waits for a job; Problem if it has not trained with the losses of `launch`."""
    wait(processes, SECONDS)
    check_codes(processes, 0)
    record = json.loads(lab.record_path.read_text())
    expected = lab.reference(layout)
    pairs = zip(record["losses"], expected, strict=False)
    if len(record["losses"]) != len(expected) or any(
        not math.isclose(one, other, rel_tol=1e-5) for one, other in pairs
    ):
        raise Problem(f"losses {record['losses']} instead of {expected}")


def check_refused(processes: Sequence[Process], reason: str, seconds: float, code: int = 4) -> None:
    """Problem if not every process ends with this exit code and reason, all at the same time."""
    wait(processes, seconds)
    check_codes(processes, code)
    for process in processes:
        if not re.search(reason, process.text()):
            raise Problem(f"{process.name} says: {last_line(process.text())}")
    apart = max(one.ended for one in processes) - min(one.ended for one in processes)
    if apart > TOGETHER:
        raise Problem(f"the processes ended {apart:.1f} s apart")


def check_lost(lab: Lab, processes: Sequence[Process], reason: str, seconds: float = 45) -> None:
    """Problem if the processes that are left do not end with 4, and the record with the reason."""
    wait(processes, seconds)
    check_codes(processes, 4)
    record = json.loads(lab.record_path.read_text())
    if record["status"] != "failed" or not re.search(reason, str(record["error"])):
        raise Problem(f"record: {record['status']}, {record['error']}")
    if not record["losses"]:
        raise Problem("the record has no steps")


# How jobs are started: by flags, by TF_CONFIG, and by launchers.


def by_flags(
    lab: Lab, layout: Layout, *more: str, steps: int = 8, places: Sequence[str] = ("h1", "h2", "h3")
) -> list[Process]:
    """Starts a job whose processes get all addresses as flags. Returns them, the chief first."""
    jobs: dict[str, list[str]] = {}
    for at, (name, index) in enumerate(layout.tasks()):
        jobs.setdefault(name, []).append(f"{places[at % len(places)]}:{PORT + 10 * at + index}")
    own = [f"--{n}_host{'' if n == 'controller' else 's'}={','.join(a)}" for n, a in jobs.items()]
    processes = []
    for at, (name, index) in enumerate(layout.tasks()):
        words = [*CNNBENCH, *layout.flags(steps), *own, f"--job_name={name}"]
        words += [f"--task_index={index}", *results(lab, layout, name, index), *more]
        processes.append(lab.start(f"{name}-{index}", words, f"h{at % len(places) + 1}"))
    return processes


def results(lab: Lab, layout: Layout, name: str, index: int) -> list[str]:
    """Returns --result_json for the process that writes the record."""
    chief = ("controller", 0) if layout.controller else ("worker", 0)
    return [f"--result_json={lab.record_path}"] if (name, index) == chief else []


def by_tf_config(lab: Lab, cluster: Mapping[str, int], layout: Layout, *more: str) -> list[Process]:
    """Starts a job that TF_CONFIG describes, with this number of tasks of each type."""
    names = [(name, index) for name, number in cluster.items() for index in range(number)]
    addresses: dict[str, list[str]] = {}
    for at, (name, _) in enumerate(names):
        addresses.setdefault(name, []).append(f"h{at % 3 + 1}:{PORT + at}")
    processes = []
    for at, (name, index) in enumerate(names):
        config = {"cluster": addresses, "task": {"type": name, "index": index}}
        words = [*CNNBENCH, "--cluster=tf_config", *layout.flags(), *more]
        words += ["--eval", "--eval_interval_secs=1"] if name == "evaluator" else []
        chief = "chief" if "chief" in cluster else "worker"
        words += [f"--result_json={lab.record_path}"] if (name, index) == (chief, 0) else []
        env = {"TF_CONFIG": json.dumps(config)}
        processes.append(lab.start(f"{name}-{index}", words, f"h{at % 3 + 1}", env))
    return processes


Launcher = Callable[[Lab, Sequence[str]], Process]
"""Starts cnnbench with these words in every process."""


def slurm(*options: str, cluster: str = "slurm") -> Launcher:
    """Starts a job step of Slurm."""

    def start(lab: Lab, words: Sequence[str]) -> Process:
        step = ["srun", "--mem=0", *options, *CNNBENCH, f"--cluster={cluster}", *words]
        return lab.start("srun", step, env={"SLURM_CONF": slurm_conf()})

    return start


@functools.cache
def slurm_conf() -> str:
    """The path of Slurm's configuration."""
    done = subprocess.run([HOSTS / "slurm", "conf"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def wrapped(words: Sequence[str]) -> list[str]:
    """Returns a shell that starts cnnbench without exec, as wrapper scripts do."""
    return ["bash", "-c", f"{shlex.join(words)}; exit $?"]


def library_of(lab: Lab, kind: str) -> list[str]:
    """Returns variables with which mpi4py's wheel loads the library of this MPI."""
    if kind != "mpich":
        return ["MPI4PY_MPIABI=openmpi"]
    # Debian's MPICH has another file name than the wheel expects.
    library = lab.state / "mpi4py" / "lib" / "libmpi.so.12"
    if not library.exists():
        library.symlink_to(next(Path("/usr/lib").glob("*/libmpich.so.12")))
    return ["MPI4PY_MPIABI=mpich", f"LD_LIBRARY_PATH={library.parent}"]


def mpi(
    kind: str, size: int, *, mpi4py: bool = False, wrapper: bool = False, hosts: int = 2
) -> Launcher:
    """Starts an MPI job.

    Args:
      kind: openmpi, openmpi5 or mpich.
      mpi4py: whether mpi4py exchanges the addresses; otherwise --rendezvous is given if there are
        several hosts.
      wrapper: whether a shell starts each process.
    """

    def start(lab: Lab, words: Sequence[str]) -> Process:
        own = [*CNNBENCH, "--cluster=mpi", *words]
        own += [] if mpi4py or hosts == 1 else [f"--rendezvous=h1:{PORT}"]
        names = [f"h{number + 1}" for number in range(hosts)]
        env = {}
        if mpi4py:
            (packages,) = (lab.state / "mpi4py").glob("lib/python*/site-packages")
            own = ["env", f"PYTHONPATH={packages}", *library_of(lab, kind), *own]
        rsh = str(HOSTS / "rsh")
        if kind == "mpich":
            head = ["mpiexec.mpich", "-launcher", "rsh", "-launcher-exec", rsh]
            head += ["-hosts", ",".join(names)]
            head += ["-n", str(size)]
        else:
            mpirun = "mpirun.openmpi"
            if kind == "openmpi5":
                root = lab.state / "openmpi5"
                mpirun = str(root / "bin" / "mpirun")
                env = {"LD_LIBRARY_PATH": f"{root}/lib:{root}/lib/openmpi"}
            host = ",".join(f"{name}:{math.ceil(size / hosts)}" for name in names)
            head = [mpirun, "--allow-run-as-root", "--mca", "plm_rsh_agent", rsh, "--host", host]
            head += ["-np", str(size)]
        return lab.start(kind, [*head, *(wrapped(own) if wrapper else own)], "h1", env)

    return start


@dataclass(frozen=True)
class Row:
    """A row of the table: a job, what is done to it, and how it must end.

    Attributes:
      check: runs the job, and raises Problem if it does not end as it should.
      needs: programs and folders that the row needs.
      quick: whether CI runs the row.
    """

    name: str
    check: Callable[[Lab], None]
    needs: tuple[str, ...] = ()
    quick: bool = False


ROWS: list[Row] = []


def row(
    name: str, *needs: str, quick: bool = False
) -> Callable[[Callable[[Lab], None]], Callable[[Lab], None]]:
    """Adds a function to the table."""

    def add(check: Callable[[Lab], None]) -> Callable[[Lab], None]:
        ROWS.append(Row(name, check, needs, quick))
        return check

    return add


def trains(name: str, launcher: Launcher, layout: Layout, *needs: str, quick: bool = False) -> None:
    """Adds a row: a job that one command starts and that trains."""

    @row(name, *needs, quick=quick)
    def check(lab: Lab) -> None:
        more = [f"--cluster_ps={layout.ps}"] if layout.ps else []
        words = [*layout.flags(), *more, f"--result_json={lab.record_path}"]
        check_trained(lab, [launcher(lab, words)], layout)


trains("Slurm, 2 hosts", slurm("-N2", "-n2"), RING2, "srun", quick=True)
trains("Slurm, 3 hosts", slurm("-N3", "-n3"), RING3, "srun")
trains("Slurm, 2 tasks on each of 2 hosts", slurm("-N2", "-n4"), RING4, "srun")
trains("Slurm, cyclic", slurm("-N2", "-n4", "--distribution=cyclic"), RING4, "srun", quick=True)
trains("Slurm, plane", slurm("-N2", "-n4", "--distribution=plane=1"), RING4, "srun")
trains("Slurm, a parameter server", slurm("-N3", "-n3"), SERVED, "srun")
trains("Slurm, in --cluster=mpi", slurm("-N1", "-n2", cluster="mpi"), RING2, "srun")
for _kind, _name in {"openmpi": "Open MPI 4", "openmpi5": "Open MPI 5", "mpich": "MPICH"}.items():
    _quick = _kind != "openmpi5"
    trains(f"{_name}, --rendezvous", mpi(_kind, 2), RING2, _kind, quick=_quick)
    trains(f"{_name}, mpi4py", mpi(_kind, 2, mpi4py=True), RING2, _kind, "mpi4py")
    trains(f"{_name}, wrapper", mpi(_kind, 2, wrapper=True), RING2, _kind)
    trains(f"{_name}, 2 ranks a host", mpi(_kind, 4), RING4, _kind)
    trains(f"{_name}, a parameter server", mpi(_kind, 3), SERVED, _kind)
    one_host = mpi(_kind, 2, wrapper=True, hosts=1)
    trains(f"{_name}, wrapper, one host without --rendezvous", one_host, RING2, _kind)


def trains_by_flags(name: str, layout: Layout, *more: str, quick: bool = False) -> None:
    """Adds a row: a job of processes with all addresses as flags that trains."""

    @row(name, quick=quick)
    def check(lab: Lab) -> None:
        check_trained(lab, by_flags(lab, layout, *more), layout)


trains_by_flags("flags, 2 workers", RING2, quick=True)
trains_by_flags("flags, 3 workers", RING3)
trains_by_flags("flags, 2 workers and a ps", DRIVEN)
trains_by_flags("flags, a controller", COORDINATED)


@row("flags, all-reduces without training")
def _(lab: Lab) -> None:
    hosts = f"--worker_hosts=h1:{PORT},h2:{PORT + 1}"
    words = [*CNNBENCH, "allreduce", "--device=cpu", "--sizes=1K", "--iterations=3", hosts]
    processes = [
        lab.start(f"w{n}", [*words, "--job_name=worker", f"--task_index={n}"], f"h{n + 1}")
        for n in range(2)
    ]
    wait(processes, SECONDS)
    check_codes(processes, 0)


_MEET = """
import sys
from cnnbench.base.job import Job, Task
from cnnbench.run.handshake import connect_job
own, addresses = int(sys.argv[1]), tuple(sys.argv[2].split(","))
job = Job(task=Task("worker", own), worker_addresses=addresses)
connect_job(job, {"size": "128"}, 100, print).port.close()
"""


@row("flags, 128 processes that only meet")
def _(lab: Lab) -> None:
    addresses = ",".join(f"h{n % 3 + 1}:{PORT + n}" for n in range(128))
    processes = [
        lab.start(f"p{n}", [sys.executable, "-c", _MEET, str(n), addresses], f"h{n % 3 + 1}")
        for n in range(128)
    ]
    wait(processes, 120)
    check_codes(processes, 0)


@row("TF_CONFIG, workers")
def _(lab: Lab) -> None:
    check_trained(lab, by_tf_config(lab, {"worker": 2}, RING2), RING2)


@row("TF_CONFIG, a chief and a worker")
def _(lab: Lab) -> None:
    check_trained(lab, by_tf_config(lab, {"chief": 1, "worker": 1}, RING2), RING2)


@row("TF_CONFIG, a chief, a worker and a ps")
def _(lab: Lab) -> None:
    check_trained(
        lab, by_tf_config(lab, {"chief": 1, "worker": 1, "ps": 1}, COORDINATED), COORDINATED
    )


@row("TF_CONFIG, a chief, a worker and an evaluator")
def _(lab: Lab) -> None:
    cluster = {"chief": 1, "worker": 1, "evaluator": 1}
    folder = lab.folder / "training"
    *trained, evaluator = by_tf_config(lab, cluster, RING2, f"--train_dir={folder}")
    check_trained(lab, trained, RING2)
    wait([evaluator], 60)
    check_codes([evaluator], 0)
    evaluator.wait_for(r"the training has ended \(ok\)")


# Mistakes: each one reaches every process.

_RUNNING = r"\d images/sec|images/sec:"


@row("other flags at a worker", quick=True)
def _(lab: Lab) -> None:
    first = by_flags(lab, RING2)
    first[1].kill()
    wait(first[1:], 10)
    words = [*CNNBENCH, *RING2.flags(), f"--worker_hosts=h1:{PORT},h2:{PORT + 11}"]
    words += ["--job_name=worker", "--task_index=1", "--optimizer=momentum"]
    other = lab.start("other", words, "h2")
    check_refused([first[0], other], "--optimizer", 40)


_PLUG_IN = """
from cnnbench.optimizers import register_schedule

@register_schedule("constant-of-plug-in", about="constant")
def constant(run):
    return lambda step: run.base

"""


@row("another plug-in at a worker")
def _(lab: Lab) -> None:
    processes = by_flags(lab, RING2)
    processes[1].kill()
    processes[0].kill()
    wait(processes, 10)
    both = []
    for number, host in enumerate(("h1", "h2")):
        folder = lab.folder / host
        folder.mkdir()
        (folder / "plug_in.py").write_text(_PLUG_IN + f"VALUE = {number}\n")
        words = [*CNNBENCH, *RING2.flags(), f"--worker_hosts=h1:{PORT},h2:{PORT + 11}"]
        words += ["--job_name=worker", f"--task_index={number}", f"--plugin={folder}/plug_in.py"]
        both.append(lab.start(f"other-{number}", words, host))
    check_refused(both, "plug_in", 60)


@row("an older cnnbench at a worker", "older")
def _(lab: Lab) -> None:
    processes = by_flags(lab, RING2)
    processes[1].kill()
    wait(processes[1:], 10)
    words = ["env", f"PYTHONPATH={lab.state / 'older'}", sys.executable, "-P", "-m", "cnnbench"]
    words += [*RING2.flags(), f"--worker_hosts=h1:{PORT},h2:{PORT + 11}"]
    older = lab.start("older", [*words, "--job_name=worker", "--task_index=1"], "h2")
    check_refused([processes[0], older], "disagree|another version", 60)


@contextlib.contextmanager
def held_ports(lab: Lab, *places: tuple[str, int]) -> Iterator[None]:
    """A context in which another program listens at these ports."""
    listen = "import socket, sys, time; s = socket.create_server(('', int(sys.argv[1])))"
    listen += "; time.sleep(600)"
    holders = [
        lab.start(f"holder-{at}", [sys.executable, "-c", listen, str(port)], host)
        for at, (host, port) in enumerate(places)
    ]
    time.sleep(0.5)
    try:
        yield
    finally:
        for holder in holders:
            holder.kill()


@row("a worker's port is in use", quick=True)
def _(lab: Lab) -> None:
    with held_ports(lab, ("h2", PORT + 11)):
        check_refused(by_flags(lab, RING3, "--cluster_timeout=60"), "in use", 30)


@row("the ports of two workers are in use")
def _(lab: Lab) -> None:
    with held_ports(lab, ("h2", PORT + 11), ("h3", PORT + 22)):
        check_refused(by_flags(lab, RING3, "--cluster_timeout=60"), "in use", 30)


@row("the ports of the chief and of a worker are in use")
def _(lab: Lab) -> None:
    with held_ports(lab, ("h1", PORT), ("h3", PORT + 22)):
        processes = by_flags(lab, RING3, "--cluster_timeout=60")
        wait(processes, 40)
        check_codes(processes, 4)


@row("a missing worker")
def _(lab: Lab) -> None:
    processes = by_flags(lab, RING3, "--cluster_timeout=12")
    processes[2].kill()
    check_refused(processes[:2], r"waited 12 s .* worker:2", 40)


@row("Slurm, an arbitrary distribution", "srun")
def _(lab: Lab) -> None:
    hosts = lab.folder / "hostfile"
    hosts.write_text("h2\nh1\nh2\nh1\n")
    words = [*RING4.flags(), f"--result_json={lab.record_path}"]
    options = ("-n4", "--distribution=arbitrary", f"--nodelist={hosts}")
    step = slurm(*options)(lab, words)
    wait([step], 60)
    if step.popen.returncode == 0:
        check_trained(lab, [step], RING4)
    elif "arbitrary" not in step.text():
        raise Problem(last_line(step.text()))


@row("Slurm, two steps of one allocation", "srun")
def _(lab: Lab) -> None:
    common = ["srun", "--exact", "--mem=0", "-n2", *CNNBENCH, "--cluster=mpi", *RING2.flags()]
    names = ("sgd", "momentum")
    own = [[f"--optimizer={name}", f"--result_json={lab.folder / name}.json"] for name in names]
    script = " & ".join(shlex.join([*common, *more]) for more in own)
    env = {"SLURM_CONF": slurm_conf()}
    words = ["salloc", "-N1", "-n4", "bash", "-c", f"{script} & wait"]
    process = lab.start("salloc", words, env=env)
    wait([process], SECONDS)
    for name in ("sgd", "momentum"):
        record = json.loads((lab.folder / f"{name}.json").read_text())
        if record["status"] != "ok" or record["config"].get("optimizer", "sgd") != name:
            raise Problem(f"{name}: {record['status']}")


# Faults.


@row("SIGKILL of a worker in a step", quick=True)
def _(lab: Lab) -> None:
    processes = by_flags(lab, RING2, steps=100_000)
    processes[0].wait_for(_RUNNING)
    processes[1].kill()
    check_lost(lab, processes[:1], "worker:1")


@row("SIGKILL of the chief in a step")
def _(lab: Lab) -> None:
    processes = by_flags(lab, RING2, steps=100_000)
    processes[0].wait_for(_RUNNING)
    processes[0].kill()
    wait(processes[1:], 45)
    check_codes(processes[1:], 4)


def stops(name: str, layout: Layout, victim: int, *, quick: bool = False) -> None:
    """Adds a row: a process is stopped in a step, and continued after the job has ended."""

    @row(f"SIGSTOP of {name} in a step", quick=quick)
    def check(lab: Lab) -> None:
        processes = by_flags(lab, layout, steps=100_000)
        processes[0].wait_for(_RUNNING)
        stopped = processes.pop(victim)
        stopped.send(signal.SIGSTOP)
        task = ":".join(map(str, layout.tasks()[victim]))
        try:
            if victim:
                check_lost(lab, processes, task, 60)
            else:
                wait(processes, 60)
                check_codes(processes, 4)
        finally:
            stopped.send(signal.SIGCONT)
        wait([stopped], 30)
        check_codes([stopped], 4)


stops("a worker", RING3, 2)
stops("the chief", RING3, 0)
stops("a worker, one process computes", SERVED, 1)
stops("the chief, one process computes", SERVED, 0)


@row("a cable pulled in a step")
def _(lab: Lab) -> None:
    processes = by_flags(lab, RING2, steps=100_000)
    processes[0].wait_for(_RUNNING)
    with cut(lab, "h2"):
        check_lost(lab, processes[:1], "worker:1", 90)
    wait(processes, 60)


@row("a cable pulled in a step, and plugged in after 5 s")
def _(lab: Lab) -> None:
    processes = by_flags(lab, RING2, steps=150)
    processes[0].wait_for(_RUNNING)
    with cut(lab, "h2"):
        time.sleep(5)
    wait(processes, SECONDS)
    check_codes(processes, 0)


@row("a cable pulled in a step, and plugged in after 60 s")
def _(lab: Lab) -> None:
    processes = by_flags(lab, RING2, steps=100_000)
    processes[0].wait_for(_RUNNING)
    with cut(lab, "h2"):
        time.sleep(60)
    wait(processes, 60)
    check_codes(processes, 4)


@row("a cable pulled at the end")
def _(lab: Lab) -> None:
    processes = by_flags(lab, RING2)
    processes[0].wait_for(r"total images/sec")
    with cut(lab, "h2"):
        wait(processes, 120)
    check_codes(processes, 0, 4)
    if json.loads(lab.record_path.read_text())["status"] != "ok":
        raise Problem("the record is not ok")


@row("a cable pulled before the start, and plugged in after 10 s")
def _(lab: Lab) -> None:
    with cut(lab, "h2"):
        processes = by_flags(lab, RING2)
        time.sleep(10)
    check_trained(lab, processes, RING2)


@contextlib.contextmanager
def cut(lab: Lab, host: str) -> Iterator[None]:
    """A context in which a host has no network."""
    lab.run(HOSTS / "hosts", "cut", host)
    try:
        yield
    finally:
        lab.run(HOSTS / "hosts", "join", host)


@row("a process that is restarted before the start", quick=True)
def _(lab: Lab) -> None:
    processes = by_flags(lab, RING3)
    processes[2].kill()
    processes[1].kill()
    time.sleep(4)
    again = by_flags(lab, RING3)
    again[0].kill()
    check_trained(lab, [processes[0], *again[1:]], RING3)


@row("a process that is restarted after the start")
def _(lab: Lab) -> None:
    processes = by_flags(lab, RING2, steps=100_000)
    processes[0].wait_for(_RUNNING)
    late = by_flags(lab, RING2, steps=100_000)
    late[0].kill()
    wait(late[1:], 60)
    check_codes(late[1:], 4)
    processes[1].kill()
    check_lost(lab, processes[:1], "worker:1")


@row("Slurm, scancel", "srun")
def _(lab: Lab) -> None:
    step = slurm("-N2", "-n2", "--job-name=cancelled")(
        lab, [*RING2.flags(100_000), f"--result_json={lab.record_path}"]
    )
    step.wait_for(_RUNNING)
    lab.run("env", f"SLURM_CONF={slurm_conf()}", "scancel", "--name=cancelled")
    wait([step], 60)
    if json.loads(lab.record_path.read_text())["status"] == "ok":
        raise Problem("the record is ok")


@row("Slurm, a time limit", "srun")
def _(lab: Lab) -> None:
    step = slurm("-N2", "-n2", "--time=1")(
        lab, [*RING2.flags(100_000), f"--result_json={lab.record_path}"]
    )
    wait([step], 200)
    record = json.loads(lab.record_path.read_text())
    if record["status"] == "ok" or not record["losses"]:
        raise Problem(f"the record is {record['status']}, with {len(record['losses'])} steps")


@row("Slurm, a batch job that is requeued with --train_dir", "srun")
def _(lab: Lab) -> None:
    flags = [*RING2.flags(150), f"--train_dir={lab.folder / 'train'}", "--save_model_steps=20"]
    command = shlex.join(["srun", *CNNBENCH, "--cluster=slurm", *flags])
    script = lab.folder / "job.sbatch"
    script.write_text(f"#!/bin/bash\n#SBATCH -N2 -n2 --requeue\n{command}\necho code $?\n")
    env = ["env", f"SLURM_CONF={slurm_conf()}", "CUDA_VISIBLE_DEVICES="]
    log = lab.folder / "job.log"
    said = lab.run(*env, "sbatch", f"--output={log}", "--open-mode=append", script)
    number = said.split()[-1]
    wait_until(lambda: log.exists() and bool(re.search(r"\n40\t", log.read_text())), SECONDS)
    lab.run(*env, "scontrol", "requeue", number)
    # Slurm would wait for two minutes.
    lab.run(*env, "scontrol", "update", f"JobId={number}", "StartTime=now")
    wait_until(lambda: "code 0" in log.read_text(), 2 * SECONDS)


def wait_until(is_so: Callable[[], bool], seconds: float) -> None:
    """Waits for a condition. Problem if it is not met in time."""
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            raise Problem("this took too long")
        time.sleep(0.1)


# Strangers at the chief's port, and networks.

_STRANGERS = {
    "HTTP": "s.sendall(b'GET / HTTP/1.1\\r\\nHost: h1\\r\\n\\r\\n')",
    "silence": "pass",
    "a huge length": "s.sendall(b'\\xff' * 64)",
    "random bytes": "import os; s.sendall(os.urandom(4096))",
}
_CALL = """
import socket, sys, time
while True:
    try:
        s = socket.create_connection(("h1", int(sys.argv[1])), 1)
        {what}
        s.settimeout(2)
        s.recv(100)
    except OSError:
        time.sleep(0.1)
"""


def meets_stranger(name: str, what: str) -> None:
    """Adds a row: a job trains although another program calls the chief again and again."""

    @row(f"a stranger: {name}", quick=name == "HTTP")
    def check(lab: Lab) -> None:
        words = [sys.executable, "-c", _CALL.format(what=what), str(PORT)]
        callers = [lab.start(f"stranger-{at}", words, "h3") for at in range(3)]
        try:
            check_trained(lab, by_flags(lab, RING2), RING2)
        finally:
            for caller in callers:
                caller.kill()


for _stranger, _what in _STRANGERS.items():
    meets_stranger(_stranger, _what)


_FORGE = """
import socket, sys, time
from cnnbench.base.star import Card
while True:
    for task in ("worker:0", "worker:1", "rank 1"):
        card = Card(task=task, facts={"--worker_hosts": "h1:1,h2:2"}, failed="forged")
        try:
            with socket.create_connection(("h1", int(sys.argv[1])), 1) as s:
                s.sendall(card.pack())
                s.settimeout(2)
                s.recv(100)
        except OSError:
            time.sleep(0.1)
"""


@row("a stranger: a forged card", quick=True)
def _(lab: Lab) -> None:
    caller = lab.start("stranger", [sys.executable, "-c", _FORGE, str(PORT)], "h3")
    try:
        check_trained(lab, by_flags(lab, RING2), RING2)
    finally:
        caller.kill()


@row("only IPv6")
def _(lab: Lab) -> None:
    with addressed(lab, 6):
        places = ("[fd77::1]", "[fd77::2]")
        check_trained(lab, by_flags(lab, RING2, places=places), RING2)


@row("two interfaces: the job is on the second")
def _(lab: Lab) -> None:
    with addressed(lab, 4):
        check_trained(lab, by_flags(lab, RING2, places=("10.78.0.1", "10.78.0.2")), RING2)


@row("only the given ports are open", "nft", quick=True)
def _(lab: Lab) -> None:
    accepted = (
        "iif lo accept",
        "ct state established accept",
        "meta l4proto ipv6-icmp accept",
        f"tcp dport {{ {PORT}, {PORT + 11} }} accept",
    )
    chain = "type filter hook input priority 0; policy drop; " + "; ".join(accepted)
    rules = f"table inet jobs {{ chain input {{ {chain}; }}; }}"
    for host in ("h1", "h2"):
        lab.run(HOSTS / "hosts", "run", host, "nft", rules)
    try:
        check_trained(lab, by_flags(lab, RING2), RING2)
    finally:
        for host in ("h1", "h2"):
            lab.run(HOSTS / "hosts", "run", host, "nft", "flush ruleset")


@contextlib.contextmanager
def addressed(lab: Lab, version: int) -> Iterator[None]:
    """A context in which h1 and h2 have other addresses: only IPv6 ones, or those of a second
    interface, too.
    """
    for number in (1, 2):
        host = f"h{number}"
        if version == 6:
            lab.run("ip", "-n", host, "addr", "add", f"fd77::{number}/64", "dev", "eth0", "nodad")
            lab.run("ip", "-n", host, "-4", "addr", "flush", "dev", "eth0")
        else:
            peer = ("peer", "name", "eth1", "netns", host)
            lab.run("ip", "link", "add", f"cnnb-x{number}", "type", "veth", *peer)
            lab.run("ip", "link", "set", f"cnnb-x{number}", "master", "cnnb0", "up")
            lab.run("ip", "-n", host, "addr", "add", f"10.78.0.{number}/24", "dev", "eth1")
            lab.run("ip", "-n", host, "link", "set", "eth1", "up")
    try:
        yield
    finally:
        for number in (1, 2):
            host = f"h{number}"
            if version == 6:
                address = f"10.77.0.{number}/24"
                lab.run("ip", "-n", host, "addr", "add", address, "dev", "eth0")
                lab.run("ip", "-n", host, "addr", "del", f"fd77::{number}/64", "dev", "eth0")
            else:
                lab.run("ip", "link", "del", f"cnnb-x{number}")


# The script.

_LIBRARIES = {"openmpi5": "openmpi", "mpi4py": "mpi4py"}
"""Distributions of the package index, by the folder of the virtual environment that gets them."""


_OLDER = "5ec9ea4ca"
"""The last commit whose processes started a job in another way."""


def install_older(lab: Lab, folder: Path) -> bool:
    """Installs the older cnnbench into a folder; returns whether this has worked."""
    if not folder.exists():
        tree = folder.with_name("older-tree")
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder)
        with contextlib.suppress(Problem):
            lab.run("git", "-C", HOSTS, "worktree", "add", "--detach", tree, _OLDER)
            lab.run(*pip, tree)
            lab.run("git", "-C", HOSTS, "worktree", "remove", "--force", tree)
    return folder.exists()


def missing(lab: Lab, need: str) -> bool:
    """Returns whether a program, or a folder of `_LIBRARIES`, is not there."""
    programs = {"openmpi": "mpirun.openmpi", "mpich": "mpiexec.mpich", "srun": "slurmctld"}
    if need == "older":
        return not install_older(lab, lab.state / need)
    if need == "srun" and not lab.has_slurm:
        return True
    if need not in _LIBRARIES:
        return shutil.which(programs.get(need, need)) is None
    folder = lab.state / need
    if not folder.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [str(folder / "bin/pip"), "install", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run([*pip, _LIBRARIES[need]], check=False, stderr=subprocess.DEVNULL)
        (folder / "done").write_text(str(done.returncode))
    return (folder / "done").read_text() != "0"


@contextlib.contextmanager
def running_lab() -> Iterator[Lab | None]:
    """A context in which the three hosts are up, with Slurm if it is installed; None if this
    machine has no network namespaces.
    """
    with tempfile.TemporaryDirectory(prefix="cnnbench-jobs-") as state:
        lab = Lab(Path(state))
        tool = HOSTS / ("slurm" if shutil.which("slurmctld") else "hosts")
        with contextlib.suppress(Problem):
            lab.run(HOSTS / "slurm", "down")
        try:
            try:
                lab.run(tool, "up", "3")
                lab.run("ip", "-n", "h3", "addr")
            except (Problem, OSError) as error:
                print(f"skipped: {error}")
                yield None
                return
            yield lab
        finally:
            with contextlib.suppress(Problem):
                lab.run(tool, "down")


def check_row(lab: Lab, one: Row, kept: Path) -> bool:
    """Runs a row and prints its line; returns whether it holds. Keeps its files if it does not."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(dir=lab.state) as folder:
        lab.folder = Path(folder)
        try:
            one.check(lab)
            problem = leftover(lab)
        except (Problem, OSError, KeyError, ValueError) as error:
            problem = f"{type(error).__name__}: {error}"
            end_processes(lab)
        seconds = time.monotonic() - start
        if problem:
            target = kept / re.sub(r"\W+", "_", one.name)
            shutil.copytree(folder, target, dirs_exist_ok=True)
            problem += f" ({target})"
        verdict = "FAILS" if problem else "holds"
        print(f"{verdict}  {seconds:5.1f} s  {one.name}  {problem}", flush=True)
    return not problem


def processes_of(lab: Lab) -> list[int]:
    """Returns the ids of processes that work in the folder of the current row."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            if Path(os.readlink(path)) == lab.folder:
                found.append(int(path.parent.name))
    return found


def leftover(lab: Lab) -> str:
    """Waits 3 s for the last processes of a row. Returns what is wrong if some are left."""
    with contextlib.suppress(Problem):
        wait_until(lambda: not processes_of(lab), 3)
    left = processes_of(lab)
    end_processes(lab)
    return f"{len(left)} processes are left" if left else ""


def end_processes(lab: Lab) -> None:
    """Kills all processes of the current row."""
    for pid in processes_of(lab):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the script."""

    filter: str = flag("", "Only rows whose name matches this regular expression.")
    quick: bool = flag(False, "Only rows that CI runs.")
    list: bool = flag(False, "Print the names of the rows, and run nothing.")
    packages: bool = flag(False, "Print the Debian packages that the rows need, and run nothing.")
    times: int = flag(1, "How often each row runs.", minimum=1)
    kept: str = flag("kept-jobs", "Folder for the logs of rows that fail.", path="folder")


def main(argv: Sequence[str]) -> int:
    """Runs the rows; returns the exit status."""
    options = parse_options(Options, __doc__, argv)
    rows = [one for one in ROWS if re.search(options.filter, one.name)]
    rows = [one for one in rows if one.quick or not options.quick]
    if options.packages or options.list:
        print(*(PACKAGES if options.packages else [one.name for one in rows]), sep="\n")
        return 0
    if os.geteuid() or shutil.which("ip") is None:
        print("skipped: needs root, and the Debian packages", *PACKAGES)
        return 0
    held = True
    with running_lab() as lab:
        for one in rows * options.times if lab else ():
            assert lab is not None
            lacking = [need for need in one.needs if missing(lab, need)]
            if lacking:
                print(f"skipped          {one.name}: no {', '.join(lacking)}", flush=True)
            else:
                held &= check_row(lab, one, Path(options.kept))
    return 0 if held else 1


if __name__ == "__main__":
    run_script(main)
