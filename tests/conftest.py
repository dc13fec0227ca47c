"""Tiers and order of the tests, eight logical CPU devices, made-up runs, small data sets."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import json
import os
import random
import re
import resource
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
# Its default depends on the CPU; without oneDNN grouped convolutions have no gradients.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
os.environ.pop("COLUMNS", None)  # which tables would be fitted to

# Packages with a plug-in of pytest are marked, so that every process of pytest would rewrite and
# compile all modules of cnnbench and Hypothesis again, whose compiled files are there.
for finder in sys.meta_path:
    getattr(finder, "_must_rewrite", set()).difference_update({"cnnbench", "hypothesis"})

import pytest
from forked import (
    STAND_IN,
    Forked,
    Server,
    brief,
    execute,
    finished,
    never_sync,
    own_checkout,
    stood_in,
    variables,
)
from prepared import preparing_tensorflow, stop_collecting_graphs
from registries import forget_packages, kept

from cnnbench.base import plugins
from cnnbench.campaigns.ab.asking import run_code
from cnnbench.campaigns.processes import campaign, identity
from cnnbench.cli import main
from cnnbench.flags import Params
from cnnbench.flags.groups.all_reduce import AllReduceParams
from cnnbench.machine import facts as environment
from cnnbench.machine import repository
from cnnbench.machine.cpu import Host
from cnnbench.models import registry
from cnnbench.records.all_reduce import AllReduceRecord, Point
from cnnbench.records.codec import encode
from cnnbench.records.run import (
    Batch,
    ErrorInfo,
    Measured,
    ModelInfo,
    Placement,
    RingDevices,
    RunRecord,
    StartupSeconds,
)
from cnnbench.variable_mgr.packing import Packing

LOGICAL_DEVICES = 8

preparing_tensorflow(LOGICAL_DEVICES)
never_sync()

# A traced step makes hundreds of thousands of objects, few of which a collection could free; before
# the first test, there is no garbage.
gc.set_threshold(400_000, 20, 20)
gc.disable()

# A shell ignores SIGINT and SIGQUIT for background jobs, nohup SIGHUP, and so would the processes
# that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for ignored in (signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(ignored) is signal.SIG_IGN:
        signal.signal(ignored, signal.SIG_DFL)


_folders = itertools.count()


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the test.

    That of pytest itself has the first free number, which is found among the folders of thousands
    of earlier tests.
    """
    name = re.sub(r"\W", "_", request.node.name)[:30]
    folder = tmp_path_factory.getbasetemp() / f"{name}-{next(_folders)}"
    folder.mkdir(mode=0o700)
    return folder


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --shuffle."""
    text = "run files, and the tests of each, in the order that SEED draws"
    parser.addoption("--shuffle", metavar="SEED", type=int, help=text)


SLOW_FIXTURES = {"emulated", "interrupt", "loaded_processes", "wheel"}
"""Tests that use one start real processes, and so are slow."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks slow tests, and shuffles where that is asked for; see scripts/shuffled_test."""
    for item in items:
        if SLOW_FIXTURES & {*getattr(item, "fixturenames", ())}:
            item.add_marker(pytest.mark.slow)
    seed = config.getoption("--shuffle")
    if seed is not None:
        files = [item.nodeid.partition("::")[0] for item in items]
        items[:] = [items[number] for number in shuffled(files, seed)]


def pytest_collection_finish() -> None:
    """Exempts modules and tests from garbage collections, which begin with the first test."""
    gc.freeze()
    gc.enable()


def shuffled(files: Sequence[str], seed: int) -> list[int]:
    """The numbers of tests in the order that a seed draws.

    The tests of a file stay together, since they share what its fixtures make. The seed alone
    decides, as every process of pytest-xdist has to collect the same order.

    Args:
      files: of each test.
      seed: any number.
    """
    draw = random.Random(seed)
    by_file: dict[str, list[int]] = {}
    for number, file in enumerate(files):
        by_file.setdefault(file, []).append(number)
    groups = list(by_file.values())
    draw.shuffle(groups)
    for group in groups:
        draw.shuffle(group)
    return [number for group in groups for number in group]


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Starts with the models of the package alone; what the test registers is gone afterwards."""
    registry.MODELS.load_own()
    with kept(registry.MODELS):
        for key, make in [*registry.MODELS.items()]:
            if not type(make()).__module__.startswith("cnnbench.models."):
                del registry.MODELS[key]
        monkeypatch.setattr(plugins, "_files", {})
        monkeypatch.setattr(plugins, "_groups", plugins._groups | {registry.MODELS.group})
        yield


@pytest.fixture
def install(tmp_path, monkeypatch):
    """install(group, code, of=""): a distribution whose module has an entry point of a group."""

    def install(group, code, of=""):
        (tmp_path / "cnnbench_provider.py").write_text(code)
        info = tmp_path / "provider-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: provider\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{group}]\nprobe = cnnbench_provider{of}\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, "cnnbench_provider", raising=False)
        monkeypatch.setattr(plugins, "_groups", set())

    yield install
    forget_packages()
    sys.modules.pop("cnnbench_provider", None)


def _forget_plugins():
    known = set(plugins._files)
    yield
    for file in set(plugins._files) - known:
        plugins.forget_plugin(file)


# What plug-in files registered goes after the test, or after the module whose fixture loaded them.
_after_tests = pytest.fixture(autouse=True)(_forget_plugins)
_after_modules = pytest.fixture(autouse=True, scope="module")(_forget_plugins)


@pytest.fixture(autouse=True)
def _signals_have_their_handlers() -> Iterator[None]:
    """A test that leaves a handler of a signal fails: it would take the signals of later tests."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    left = {}
    for number, handler in before.items():
        if handler is not None and signal.getsignal(number) is not handler:
            left[number.name] = signal.getsignal(number)
            signal.signal(number, handler)
    assert left == {}


@pytest.fixture
def made_up_machine(tmp_path, monkeypatch):
    """The folder that `Host()` reads in place of /, with an empty proc."""
    _, *others = Host.__init__.__defaults__
    monkeypatch.setattr(Host.__init__, "__defaults__", (tmp_path / "machine", *others))
    (tmp_path / "machine" / "proc").mkdir(parents=True)
    return tmp_path / "machine"


@pytest.fixture
def call(capsys):
    """call(WORD..., code=0, **flags): what a command prints that ends so; with None: anyhow."""

    def call(*words, code=0, **flags):
        given = [f"--{name}={value}" for name, value in flags.items()]
        capsys.readouterr()
        found = main([*given, *map(str, words)])
        printed = capsys.readouterr()
        assert code in (found, None), printed.err
        return printed

    return call


@pytest.fixture(scope="session")
def git():
    """git(FOLDER, WORD...): what git prints without an outer margin; its commits have an author."""

    def run(folder, *words, stdin=None):
        command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return finished(command, input=stdin).stdout.strip()

    return run


@pytest.fixture(scope="session")
def nets(tmp_path_factory, git):
    """The repository of helpers/repositories.py and its commits by name; not to be changed."""
    from repositories import grown

    folder = tmp_path_factory.mktemp("repository") / "nets"
    return folder, grown(folder, git)


@pytest.fixture
def limits(monkeypatch):
    """limits(module, NAME=VALUE, ...): replaces constants, such as time limits and sizes."""

    def change(module, **values):
        for name, value in values.items():
            monkeypatch.setattr(module, name, value)

    return change


@pytest.fixture
def cpus(monkeypatch):
    """cpus(usable, count): sets the CPUs that this process may use, and the number of all."""

    def have(usable, count=None):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {*usable})
        monkeypatch.setattr(os, "cpu_count", lambda: count or len(usable))

    return have


@pytest.fixture
def temporary_folders(monkeypatch):
    """temporary_folders(folder): sets the folder of temporary files."""
    return lambda folder: monkeypatch.setattr(tempfile, "tempdir", str(folder))


@pytest.fixture
def unreadable(monkeypatch):
    """unreadable(folder): refuses to list it, as the system refuses only users other than root."""

    def replace(owner, name, folder):
        listed = getattr(owner, name)

        def refuse(path):
            if str(path) == str(folder):
                raise PermissionError(13, "Permission denied", str(path))
            return listed(path)

        monkeypatch.setattr(owner, name, refuse)

    def refuse(folder):
        replace(os, "scandir", folder)
        replace(Path, "iterdir", folder)

    return refuse


@pytest.fixture(scope="session")
def little_disk():
    """with little_disk(BYTES): limits the length of files, as if the disk were full."""

    @contextlib.contextmanager
    def limited(size):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limited


@pytest.fixture(autouse=True, scope="module")
def _keep_collections_short():
    """Exempts what a module's tests leave from later garbage collections.

    With the traced graphs of thousands of tests around, one took up to twenty seconds.
    """
    yield
    stop_collecting_graphs()
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def cpu_devices() -> tuple[str, ...]:
    """Full names of the eight logical CPU devices, as concrete functions report them."""
    return tuple(f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(LOGICAL_DEVICES))


_collect = environment.collect
_machine = functools.cache(_collect)
_machine_with = functools.cache(lambda *variables: _collect())
_own_sources = functools.cache(identity.source_digest)


@functools.cache
def _subject(folder, *files, of_work=repository.measured_code):
    return of_work({"plugin": files})


@functools.cache
def _rows(draw, rows, *of):
    import tensorflow as tf

    return draw(tf.constant(rows), *of)


@functools.lru_cache(512)
def _small_value(draw, variable, seed, tower):
    return draw(variable, seed, tower)


@functools.lru_cache(8)
def _large_value(draw, variable, seed, tower):
    return draw(variable, seed, tower)


@pytest.fixture
def quick_start(monkeypatch):
    """Runs look at machine and repository once, and draw each synthetic image and weight once.

    All tests share them. Beside their steps, runs measure `brief`.
    """
    from cnnbench.data import synthetic
    from cnnbench.variable_mgr import base as variables

    draw = synthetic.draw_synthetic_rows
    draw_value = variables.initial_value

    def subject(flags):
        return _subject(os.getcwd(), *plugins.plugin_files_of_flags(flags))

    def initial_value(variable, seed, tower=0):
        if variable.initializer.draw or variable.bytes > 2**24:
            return draw_value(variable, seed, tower)
        drawn = _small_value if variable.bytes <= 2**20 else _large_value
        return drawn(draw_value, variable, seed, tower)

    for owner, name, value in (
        *brief(),
        (environment, "collect", lambda: dict(_machine())),
        (environment, "loaded_library_versions", lambda host: {}),  # there are no GPUs
        (repository, "measured_code", subject),
        (synthetic, "draw_synthetic_rows", lambda rows, *of: _rows(draw, tuple(rows.numpy()), *of)),
        (variables, "initial_value", initial_value),
    ):
        monkeypatch.setattr(owner, name, value)


@functools.cache
def _default_config():
    return encode(Params().as_dict())


class MadeUp:
    """Makes records of processes that never ran, each a minute later than the one before."""

    _START = datetime(2026, 11, 20, tzinfo=timezone.utc)
    _NAME: str

    def __init__(self, environment=None):
        self._numbers = itertools.count()
        self._environment = {"hostname": "box", "cpu_model": "Fast CPU", **(environment or {})}

    def _common(self, environment, error, status):
        """The fields of every record; `environment` has facts to replace, None removes one."""
        number = next(self._numbers)
        facts = {**self._environment, **(environment or {})}
        return {
            "run_id": f"{self._NAME}{number}",
            "started_at": (self._START + timedelta(minutes=number)).isoformat(),
            "status": status or ("failed" if error else "ok"),
            "error": ErrorInfo(type=error[0], message=error[1]) if error else None,
            "environment": {name: fact for name, fact in facts.items() if fact is not None},
        }

    def of(self, *speeds, **parts):
        """A record for each speed."""
        return [self(speed, **parts) for speed in speeds]


class LenetRuns(MadeUp):
    """Runs of lenet, 8 images on each CPU device."""

    _NAME = "run"
    _MODEL = ModelInfo(
        name="lenet",
        parameters=10,
        trainable_parameters=10,
        forward_flops_per_image=20,
        training_flops_per_image=60,
    )

    def __call__(
        self,
        images_per_sec=100.0,
        *,
        devices=1,
        steps=3,
        flags=None,
        environment=None,
        error=None,
        status=None,
        **parts,
    ):
        """A run whose every step has the speed given.

        Args:
          images_per_sec: of all devices together; None for a run without timed steps.
          devices: towers.
          steps: timed ones.
          flags: parameters to replace.
          environment: facts to replace; None as a value removes one.
          error: (type, message) of a failed run.
          status: "ok" or "failed" by itself.
          **parts: fields of the record to replace.
        """
        config = self._config(devices, flags)
        batch = Batch(per_device=config["batch_size"], global_=config["batch_size"] * devices)
        speeds = () if images_per_sec is None else (images_per_sec,) * steps
        seconds = parts.get("step_seconds", tuple(batch.global_ / speed for speed in speeds))
        values = {
            **self._common(environment, error, status),
            "command": ("cnnbench", "--model=lenet"),
            "config": config,
            "model": self._MODEL,
            "placement": Placement(
                device="cpu",
                devices=tuple(f"/device:CPU:{i}" for i in range(devices)),
                num_towers=devices,
                num_workers=1,
                variable_update=config["variable_update"],
            ),
            "batch": batch,
            "step_seconds": seconds,
            "losses": (1.0,) * len(seconds),
        }
        return RunRecord(**{**values, **parts})

    @staticmethod
    def _config(devices, flags):
        return {
            **_default_config(),
            "model": "lenet",
            "data_name": "imagenet",
            "batch_size": 8,
            "device": "cpu",
            "num_gpus": devices,
            **(flags or {}),
        }

    def with_memory(self, *mebibytes, **parts):
        """A run for each peak memory, all of one speed."""
        return [
            self(measured=Measured(peak_memory_bytes=int(size * 2**20)), **parts)
            for size in mebibytes
        ]

    def with_startup(self, *seconds, **parts):
        """A run for each start-up time, a second of it import and a second the first step."""
        return [
            self(
                startup_seconds=StartupSeconds(import_=1.0, build=total - 2.0, first_step=1.0),
                **parts,
            )
            for total in seconds
        ]


@pytest.fixture(scope="session")
def lenet_runs():
    """The class `LenetRuns`: its instances count for themselves."""
    return LenetRuns


@pytest.fixture(scope="session")
def saved():
    """saved(FOLDER, RECORDS): the folder, with a file for each record."""

    def write(folder, records):
        folder.mkdir(parents=True, exist_ok=True)
        for record in records:
            (folder / f"{record.run_id}.json").write_text(record.to_json())
        return folder

    return write


@pytest.fixture
def machine_runs(lenet_runs):
    """Makes runs with a few facts of a machine."""
    return lenet_runs({"logical_cpus": 2, "tensorflow_version": "2.21.0", "git_commit": "a" * 40})


@pytest.fixture
def runs(machine_runs):
    """The same; folders whose tests need other runs have a fixture of this name."""
    return machine_runs


@pytest.fixture(scope="session")
def fake_python(tmp_path_factory) -> str:
    """A program to name as the Python of other processes; see fake_python.py."""
    folder = tmp_path_factory.mktemp("fake_python")
    (folder / "template.json").write_text(LenetRuns()().to_json())
    source = Path(__file__).with_name("fake_python.py").read_text()
    program = folder / "fake_python"
    program.write_text(f"#!{sys.executable} -IS\n{source}")
    program.chmod(0o755)
    return str(program)


@pytest.fixture(scope="session")
def _stand_ins():
    server = Server("import json, os, pathlib, random, re, signal, socket, time, uuid", "-IS")
    yield server
    server.close()


@pytest.fixture
def quick_processes(monkeypatch, _stand_ins):
    """Campaigns run their stand-ins in this process, and look at machine and cnnbench once.

    Stand-ins that wait or are to be ended are forked, those that step in turn are started.
    """

    def facts():
        cpus = (os.cpu_count(), *sorted(os.sched_getaffinity(0)))  # which tests set
        return dict(_machine_with(*cpus, *environment.environment_facts(Host()).items()))

    monkeypatch.setattr(environment, "collect", facts)
    monkeypatch.setattr(campaign, "execute", functools.partial(execute, stand_ins=_stand_ins))
    monkeypatch.setattr(repository, "cnnbench_checkout", own_checkout)
    monkeypatch.setattr(identity, "source_digest", _own_sources)


@pytest.fixture
def loaded_processes(monkeypatch):
    """The real processes of a campaign begin with TensorFlow loaded, and without a guard."""
    monkeypatch.setattr(campaign, "execute", execute)


_PLANNING = """
import importlib
import pkgutil
import cnnbench.campaigns.ab.asking
from cnnbench.models import networks
for module in pkgutil.iter_modules(networks.__path__, f"{networks.__name__}."):
    importlib.import_module(module.name)
"""


_PLAIN = re.compile(r"null|--(?!\w*(dir|file|plugin|json|csv|path))\w+(=[\w.]*)?")
"""Arguments from which the same follows in every folder."""


@pytest.fixture(scope="session")
def _answering(tmp_path_factory):
    """Answers as `cnnbench.campaigns.ab.asking.run_code`, from processes forked with it loaded.

    It knows what followed from the same plain flags and variables. Stand-ins answer in this
    process, another cnnbench in a new one.
    """
    ours = Server(_PLANNING)
    out, err = (tmp_path_factory.mktemp("answers") / name for name in ("out", "err"))
    known = {}

    def answer(side, code, *arguments, use_own_cnnbench, timeout):
        place, key = (side.checkout, side.variables), None
        if use_own_cnnbench and all(map(_PLAIN.fullmatch, arguments)):
            given = variables(side.variables).items()
            kept = (
                one for one in given if not one[0].startswith(("PYTEST", "FAKE", "PATH", "GIT"))
            )
            key = (code, arguments, frozenset(kept))
            if key in known:
                return known[key]
        out.write_bytes(b"")
        if use_own_cnnbench:
            process = Forked(f"import sys; {code}", arguments, out, err, *place, server=ours)
            status, _ = process.end(timeout)
        elif Path(program := str(side.python)).name == STAND_IN:
            words = ("-c", code, side.import_folder, *arguments)
            status = stood_in(program, words, out, *place)
        else:
            return run_code(side, code, *arguments, use_own_cnnbench=False, timeout=timeout)
        found = SimpleNamespace(returncode=status, stdout=out.read_bytes())
        if key is not None:
            known[key] = found
        return found

    yield answer
    ours.close()


@pytest.fixture
def quick_answers(monkeypatch, _answering):
    """Flags of sides are resolved by processes that are forked, with what they import."""
    monkeypatch.setattr("cnnbench.campaigns.ab.asking.run_code", _answering)


@pytest.fixture(scope="session")
def emulated(tmp_path_factory):
    """emulated("--model=lenet", gpus=2): a run on emulated GPUs; see helpers/emulated.py."""
    from emulated import EmulatedGpus, build

    try:
        gpus = EmulatedGpus(tmp_path_factory.mktemp("emulated"))
    except build.UnavailableError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    yield gpus
    gpus.close()


_ALONE = """
import sys
from cnnbench.cli import main
status = main(sys.argv[1:])
slow = {"tensorflow", "keras", "numpy", "pandas", "scipy", "matplotlib", "jinja2"}
slow.add("cnnbench.judge.report.sections")
print("\\nloaded", *slow & {*sys.modules, *(name.partition(".")[0] for name in sys.modules)})
sys.exit(status)
"""


@pytest.fixture(scope="session")
def alone(tmp_path_factory):
    """alone("compare", A, B): what a command line does in a process of its own.

    Its status, out and err, and what it loaded of the packages that are slow to import.
    """
    server = Server("from cnnbench.cli import main")
    out, err = (tmp_path_factory.mktemp("alone") / name for name in ("out", "err"))

    def run(*arguments):
        for path in (out, err):
            path.write_bytes(b"")
        status = Forked(_ALONE, arguments, out, err, server=server).wait(240)
        text, _, loaded = out.read_text().rpartition("\nloaded")
        return SimpleNamespace(
            status=status, out=text, err=err.read_text(), loaded=set(loaded.split())
        )

    yield run
    server.close()


@pytest.fixture(scope="session")
def holds():
    """holds("run", document, ...): the published JSON Schema of that name holds for documents."""
    from jsonschema import Draft202012Validator, FormatChecker

    folder = Path(__file__).parents[1] / "docs" / "schemas"

    def check(name, *documents):
        schema = json.loads((folder / f"{name}.schema.json").read_text())
        validator = Draft202012Validator(schema, format_checker=FormatChecker())
        assert documents
        for document in documents:
            faults = [f"{e.json_path}: {e.message[:200]}" for e in validator.iter_errors(document)]
            assert faults == []

    return check


class Reductions(MadeUp):
    """All-reduce measurements of xring on 8 MB and four CPU devices, by their bus bandwidths."""

    _NAME = "reductions"

    @staticmethod
    def point(gigabytes_per_sec=6.0, *, bytes=8_000_000, devices=4, **parts):
        """A row of the bus bandwidth given; None for one without times."""
        # S / t * 2(n-1)/n = bandwidth
        seconds = ()
        if gigabytes_per_sec is not None:
            seconds = (bytes * 2 * (devices - 1) / devices / (gigabytes_per_sec * 1e9),) * 3
        values = {
            "spec": "xring",
            "packing": Packing(),
            "workload": str(bytes),
            "dtype": "float32",
            "bytes": bytes,
            "tensors": 1,
            "elements": bytes // 4,
            "devices": devices,
            "seconds": seconds,
            "checked": bytes // 2,
            "build_seconds": 0.5,
        }
        return Point(**{**values, **parts})

    def __call__(self, *points, flags=None, environment=None, error=None, status=None, **parts):
        """A process that measured some rows: points, or their bus bandwidths in GB/s.

        Args:
          *points: rows; a number is a row of that bandwidth.
          flags: to replace.
          environment: facts to replace.
          error: (type, message) of a failed process.
          status: "ok" or "failed" by itself.
          **parts: fields of the record to replace.
        """
        rows = [p if isinstance(p, Point) else self.point(p) for p in points]
        config = encode(AllReduceParams(device="cpu", num_gpus=(4,), num_batches=3).as_dict())
        config |= {"sizes": sorted({row.workload for row in rows}), **(flags or {})}
        values = {
            **self._common(environment, error, status),
            "command": ("cnnbench", "allreduce"),
            "config": config,
            "placement": RingDevices(
                device="cpu", devices=tuple(f"/device:CPU:{i}" for i in range(4))
            ),
            "points": tuple(rows),
        }
        return AllReduceRecord(**{**values, **parts})


@pytest.fixture(scope="session")
def make_reductions():
    """The class `Reductions`: its instances count for themselves."""
    return Reductions


@pytest.fixture
def reductions(make_reductions):
    return make_reductions()


@pytest.fixture(scope="session")
def photos():
    """uint8 photographs by class name, from scikit-learn and scikit-image."""
    import skimage.data
    from sklearn.datasets import load_sample_images

    china, flower = load_sample_images().images
    return {
        "cat": skimage.data.chelsea(),
        "china": china,
        "coffee": skimage.data.coffee(),
        "flower": flower,
    }


@pytest.fixture(scope="session")
def sources(tmp_path_factory):
    """What users have before they make the small data set of a name; not to be changed."""

    from data_sets import SMALL

    @functools.cache
    def source(name):
        folder = tmp_path_factory.mktemp("source")
        SMALL[name].source(folder)
        return folder

    return source


@pytest.fixture(scope="session")
def small_set(sources, tmp_path_factory):
    """The small data set of a name; not to be changed."""

    from data_sets import SMALL

    @functools.cache
    def made(name):
        return SMALL[name].make(sources(name), tmp_path_factory.mktemp("made") / "set")

    return made
