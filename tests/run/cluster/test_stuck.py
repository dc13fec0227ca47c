"""Real processes whose input hangs although they are alive."""

import contextlib
import json
import os
from types import SimpleNamespace

import pytest
from data_sets import write_random_cifar10
from forked import Forked, cnnbench, impatient, until
from jobs import SECONDS, started
from short_runs import NETWORKS

pytestmark = pytest.mark.slow

STALL = 4
WITH_PS = ("worker:1", "ps:0", "worker:0")
JOBS = {
    "collective": (("worker:1", "worker:0"), ["--variable_update=collective_all_reduce"]),
    "with a ps": (WITH_PS, []),
}


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_random_cifar10(folder, train=40)
    return [
        *("--device=cpu", "--model=gate", f"--plugin={NETWORKS}", "--quiet_conditions=all"),
        *("--data_name=cifar10", f"--data_dir={folder}", "--batch_size=2"),
        *("--num_warmup_batches=1", "--num_batches=100000000", "--display_every=20"),
        f"--stall_timeout={STALL}",
    ]


def opened(folder):
    """A gate without which no input is read."""
    folder.mkdir(exist_ok=True)
    (folder / "gate").touch()


def closed(folder):
    """Replaces the gate by one that nobody opens."""
    os.mkfifo(folder / "fifo")
    os.replace(folder / "fifo", folder / "gate")


def job(folder, order, flags, **program):
    """A job, not yet started, whose gates are open."""
    for name in order:
        opened(folder / name)
    chief_flags = [f"--result_json={folder / 'record.json'}"]
    return started(folder, flags, order, chief_flags=chief_flags, **program)


def alone(folder, flags):
    """A process without a job."""
    opened(folder)
    given = [*flags, f"--result_json={folder / 'record.json'}"]
    return Forked(cnnbench, given, folder / "out", folder / "err", folder)


@pytest.fixture(scope="module")
def ended(flags, tmp_path_factory):
    """The outcomes of the jobs and of a process alone, by name.

    Worker 1 reads nothing any more after some steps; while a job waits for that, the next starts.
    """
    found = {}
    with contextlib.ExitStack() as stack:
        waiting = {}
        for name, (order, more) in JOBS.items():
            folder = tmp_path_factory.mktemp("job")
            tasks = stack.enter_context(job(folder, order, [*flags, *more]))
            tasks.wait_for("worker:0", "\n20\t")
            closed(folder / "worker:1")
            waiting[name] = tasks
        folder = tmp_path_factory.mktemp("alone")
        process = alone(folder, flags)
        stack.callback(process.kill)
        printed, log = folder / "out", folder / "err"
        until(lambda: "\n20\t" in printed.read_text(), SECONDS, process, log)
        closed(folder)
        codes = {"alone": process.wait(SECONDS)}
        found["alone"] = outcome(folder, codes)
        for name, tasks in waiting.items():
            found[name] = outcome(tasks.folder, tasks.wait())
    return found


def outcome(folder, codes):
    """Exit codes, what was said on standard error, and the record."""
    return SimpleNamespace(
        codes=codes,
        said={path.name: path.read_text() for path in folder.glob("*err")},
        record=json.loads((folder / "record.json").read_text()),
    )


@pytest.mark.parametrize("name", JOBS)
def test_a_worker_whose_input_hangs_is_named_by_all(name, ended):
    job = ended[name]
    assert set(job.codes.values()) == {4}, job.said
    assert all("stuck: worker:1 (localhost:" in said for said in job.said.values()), job.said
    assert job.record["status"] == "failed"
    message = job.record["error"]["message"]
    assert message.startswith("stuck: worker:1 (localhost:")
    assert message.endswith(f"waits for its input (--stall_timeout={STALL})")
    steps = len(job.record["losses"])
    assert steps >= 20
    if name == "collective":
        assert f"s after step {steps}, waits" in message


def test_a_process_alone_ends_too(ended):
    alone = ended["alone"]
    assert alone.codes == {"alone": 4}
    error = alone.record["error"]["message"]
    assert error.startswith("stuck: the run: no progress for ")
    assert f"cnnbench: error: {error}\n" in alone.said["err"]


def test_workers_that_do_not_wait_for_one_another_go_on_without_it(flags, tmp_path):
    # The first update of a worker, which may still be under way, may take longer.
    mode = [*flags, "--nocross_replica_sync"]
    with job(tmp_path, WITH_PS, mode, program=impatient) as tasks:
        # Late enough that threads of worker 1 hang in its input and keep its step from ending.
        tasks.wait_for("worker:0", "\n400\t")
        closed(tmp_path / "worker:1")
        tasks.wait_for(
            "worker:0", "worker:1 is lost; the other workers continue: no progress", "err"
        )
        tasks.wait_for("worker:0", "images/sec", seen=len(tasks.printed("worker:0")))
