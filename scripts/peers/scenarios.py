"""The scenarios: which programs each scenario compares, and what is required of cnnbench.

A program that only reduces is a process of ``cnnbench allreduce`` in which the compared reductions
are interleaved, so ratios are computed within the process. Emulated GPUs compute nothing: durations
of their work are set, not measured, and CPU time is the CPU time of the host.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from cnnbench.errors import FlagError, PathError, UsageError
from cnnbench.flags.declare import flag, split_comma_separated
from cnnbench.machine.repository import GitError, git
from cnnbench.records.all_reduce import AllReduceRecord, Point
from peers.demands import Demand, require_ratio, require_value
from peers.process import is_step_line
from peers.readings import (
    Key,
    Reader,
    Reading,
    ancestor_reader,
    memory_reader,
    over,
    read_child,
    read_document,
    read_duration,
    read_first_line,
    read_first_step,
    read_loop,
    read_record,
    read_reductions,
    until_last_step,
)

CHILDREN = Path(__file__).resolve().parent / "children"

# In a command, this text is replaced by the path of the run record.
RECORD = "{record}"
RESULT = f"--result_json={RECORD}"

# All programs have the same learning rate, with which random images never diverge.
LEARNING_RATE = 0.001
WEIGHT_DECAY = 0.00004
_SGD = (f"--init_learning_rate={LEARNING_RATE}", f"--weight_decay={WEIGHT_DECAY}")

_OWN = ("cnnbench", "tensorflow")
# Modules that the interpreters of other frameworks need.
_PEERS = {"keras": ("keras", "tensorflow"), "torch": ("torch",)}
_OF_CIFAR10 = ("densenet", "resnet20")
_TRAINED = "trained"

Part: TypeAlias = str | Demand
"""A word of a command line, or a requirement."""


@dataclass(frozen=True)
class Subject:
    """A program that is measured once per round of a scenario.

    Attributes:
      name: Name in the table.
      parts: Words of the command line, and requirements, in any order.
      read: Function that creates a reading from the finished process and the path of its record;
        raises ValueError if it cannot.
      missing: Why the subject cannot be run, if that is known beforehand.
      watch_memory: Function that selects the lines of output at which resident memory is recorded.
      group: Subjects of one group can be interleaved. Subjects without a group run alone, because
        they cannot be stopped between two steps.
      in_bursts: Whether several steps end at almost the same time, so that the median step time is
        not meaningful.
    """

    name: str
    dtype: str
    parts: Sequence[Part]
    read: Reader
    python: str
    modules: tuple[str, ...] = _OWN
    environment: Mapping[str, str] = field(default_factory=dict)
    status: int = 0
    missing: str = ""
    watch_memory: Callable[[str], bool] | None = None
    group: str = ""
    in_bursts: bool = False

    @property
    def key(self) -> Key:
        """Name and dtype of the subject, which identify it."""
        return self.name, self.dtype

    @property
    def command(self) -> tuple[str, ...]:
        """The words of the subject's command line."""
        return tuple(part for part in self.parts if isinstance(part, str))

    @property
    def demands(self) -> tuple[Demand, ...]:
        """The requirements of the subject."""
        return tuple(part for part in self.parts if isinstance(part, Demand))


Subjects: TypeAlias = Iterator[Subject]


# Programs: how each is started and read.


def shared_flags(options: Options) -> tuple[str, ...]:
    """Flags that cnnbench and tf_cnn_benchmarks share. Batch size 0 is the model's default."""
    data = "cifar10" if options.model.startswith(_OF_CIFAR10) else "imagenet"
    return (
        *(f"--model={options.model}", f"--data_name={data}", "--device=cpu"),
        *(f"--batch_size={options.batch_size}", f"--num_batches={options.batches}"),
        *(f"--num_warmup_batches={options.warmup}", "--optimizer=sgd"),
    )


def cnnbench(
    options: Options,
    name: str,
    *parts: Part,
    read: Reader = read_first_step,
    dtype: str = "fp32",
    **more: Any,
) -> Subject:
    """Creates a subject that runs cnnbench: the installed command, or the module."""
    python = options.cnnbench_python
    installed = Path(python).parent / "cnnbench"
    command = (str(installed),) if installed.is_file() else (python, "-m", "cnnbench")
    return Subject(name, dtype, (*command, *parts), read, python, **more)


def trained(
    options: Options,
    name: str,
    *parts: Part,
    launch: Sequence[str] = (),
    dtype: str = "fp32",
    **more: Any,
) -> Subject:
    """Creates a subject that trains with cnnbench, directly or by `launch`."""
    flags = (*shared_flags(options), *_SGD, f"--precision={dtype}")
    more = {"read": read_record, "group": _TRAINED, **more}
    display = ("--display_every=1", RESULT)
    return cnnbench(options, name, *launch, *flags, *parts, *display, dtype=dtype, **more)


def child(
    options: Options,
    script: str,
    *parts: Part,
    name: str = "",
    dtype: str = "fp32",
    read: Reader = read_child,
    **more: Any,
) -> Subject:
    """Creates a subject that runs a program of children/."""
    kind = script.partition("_")[0]
    python: str = getattr(options, f"{kind}_python", options.cnnbench_python)
    command = (python, str(CHILDREN / f"{script}.py"), *parts)
    return Subject(name or kind, dtype, command, read, python, _PEERS.get(kind, _OWN), **more)


def peer(options: Options, script: str, *parts: Part, dtype: str = "fp32", **more: Any) -> Subject:
    """Creates a subject of another framework that trains step by step."""
    flags = (
        *(f"--model={options.model}", f"--dtype={dtype}", f"--batch_size={options.batch_size}"),
        *(f"--batches={options.batches}", f"--warmup={options.warmup}"),
        *(f"--learning_rate={LEARNING_RATE}", f"--weight_decay={WEIGHT_DECAY}"),
    )
    return child(options, script, *flags, *parts, dtype=dtype, **{"group": _TRAINED, **more})


def ancestor(
    options: Options, *flags: str, towers: int = 1, name: str = "ancestor", group: str = _TRAINED
) -> Subject:
    """Creates a subject that runs tf_cnn_benchmarks."""
    python, folder, missing = options.ancestor_python, Path(options.ancestor or "").resolve(), ""
    script = folder / "tf_cnn_benchmarks.py"
    if options.ancestor is None:
        missing = "no --ancestor=FOLDER was given"
    elif not script.is_file():
        missing = f"there is no {script.name} in --ancestor={options.ancestor}"
    try:
        commit = git("rev-parse", "--short", "HEAD", folder=folder)
    except GitError:
        commit = "?"
    display = ("--data_format=NHWC", "--display_every=1")
    return Subject(
        name,
        "fp32",
        (python, str(script), *shared_flags(options), *_SGD, *display, *flags),
        ancestor_reader(towers * options.batch_size, f"{script.stem} {commit}"),
        python,
        modules=("tensorflow", "tf_keras"),
        environment={"TF_USE_LEGACY_KERAS": "1"},
        missing=missing,
        group=group,
    )


def matmul(options: Options, dtype: str) -> Subject:
    """Creates a subject that measures matrix products, not in turns because it has no steps."""
    flags = (f"--dtype={dtype}", f"--size={options.matmul_size}")
    return child(options, "matmul", *flags, dtype=dtype)


# Trainings.

OF_WORKERS = ("collective", "controller", "coordinator")
_DTYPES = ("fp32", "bf16")

_FLOPS = "achieved_flops_per_sec"
_MEMORY = require_ratio("ancestor", 0.9, "peak_bytes", "peak memory, ", at_most=True)
_KERAS = require_ratio("keras", 1.15)
_CLASSIC = {
    "alexnet": (require_ratio("ancestor", 1.15), _MEMORY),
    "vgg16": (require_ratio("ancestor", 1.15), _KERAS, require_ratio("matmul", 0.85, _FLOPS)),
    "googlenet": (require_ratio("ancestor", 1.0),),
    "inception3": (require_ratio("ancestor", 1.0), _KERAS),
    "densenet40": (require_ratio("ancestor", 1.0),),
}
# Batch size of the classic networks; --batch_size applies to all other networks.
_CLASSIC_BATCH = 16

_XRING = ("--variable_update=replicated", "--all_reduce_spec=xring")
_TWO_TOWERS = ("resnet50", 4, 1, 2, 1.1)
# Trainings that are compared only with tf_cnn_benchmarks, by name of the case:
# network, batch size, factor of --batches (for short steps), towers, bound, and flags.
_AGAINST: dict[str, tuple[str, int, int, int, float, tuple[str, ...]]] = {
    "resnet50_v1.5": ("resnet50_v1.5", 16, 1, 1, 1.05, ()),
    "resnet20": ("resnet20", 128, 2, 1, 1.05, ()),
    "lenet": ("lenet", 32, 10, 1, 1.1, ()),
    "trivial": ("trivial", 32, 10, 1, 1.2, ()),
    "trivial, 4 towers": ("trivial", 32, 4, 4, 1.4, _XRING),
    "2 towers, parameter_server": (*_TWO_TOWERS, ("--variable_update=parameter_server",)),
    "2 towers, xring": (*_TWO_TOWERS, _XRING),
    "2 towers, pscpu": (*_TWO_TOWERS, (_XRING[0], "--all_reduce_spec=pscpu")),
    "2 towers, independent": (*_TWO_TOWERS, ("--variable_update=independent",)),
}
# Networks of `_AGAINST` in which gradients of convolutions take most of a step.
_CONVOLUTIONAL = ("resnet50_v1.5", "resnet20")
# Reductions in a step with two towers, with their flags.
_REDUCTIONS = {
    **{spec: (f"--all_reduce_spec={spec}",) for spec in ("copy", "pscpu", "rechd", "xring")},
    "xring packed": ("--all_reduce_spec=xring", "--gradient_repacking=8"),
    "collective": ("--all_reduce_spec=collective",),
}
# Scenario `input`: images per step, and factor of --batches (its steps are short).
_INPUT_BATCH, _INPUT_STEPS = 64, 5
# Batch size of scenario `observed`: short steps show the time that passes between steps.
_OBSERVED_BATCH = 32


def _library(options: Options, *flags: str, case: str = "", **more: Any) -> Subject:
    """A training with TensorFlow's own convolution gradients, as in tf_cnn_benchmarks."""
    name, other = (f"{one} {case}".strip() for one in ("library", "ancestor"))
    parts: tuple[Part, ...] = ("--conv_gradients=library", *flags, require_ratio(other, 1.0))
    return trained(options, name, *parts, **more)


def _resnet50(options: Options) -> Subjects:
    def in_bf16(other: str, bound: float, *attribute: str) -> Demand:
        return require_ratio(other, bound, *attribute, needs_bf16=True)

    bounds = {"ancestor": 1.05, "torch": 1.1, "keras": 1.3}
    others = (require_ratio(*bound) for bound in bounds.items())
    yield trained(options, "cnnbench", *others, require_ratio("matmul", 0.85, _FLOPS), _MEMORY)
    speeds = (in_bf16("cnnbench", 1.6), in_bf16("torch:bf16", 1.1))
    flops = in_bf16("matmul:bf16", 0.80, _FLOPS)
    yield trained(options, "cnnbench", *speeds, flops, dtype="bf16")
    for script in ("keras_steps", "torch_steps"):
        yield from (peer(options, script, dtype=dtype) for dtype in _DTYPES)
    yield _library(options)
    yield ancestor(options)
    yield from (matmul(options, dtype) for dtype in _DTYPES)


def _classic(network: str, options: Options) -> Subjects:
    model = "densenet40_k12" if network == "densenet40" else network
    options = options.but(model=model, batch_size=_CLASSIC_BATCH)
    others = {name for demand in _CLASSIC[network] for name, _ in demand.subjects}
    yield trained(options, "cnnbench", *_CLASSIC[network])
    yield _library(options)
    yield ancestor(options)
    if "keras" in others:
        yield peer(options, "keras_steps")
    if "matmul" in others:
        yield matmul(options, "fp32")


def _against_ancestor(options: Options) -> Subjects:
    for case, (model, batch, times, towers, bound, own) in _AGAINST.items():
        steps = {name: times * getattr(options, name) for name in ("batches", "warmup")}
        of_case = options.but(model=model, batch_size=batch, **steps)
        flags = (f"--num_gpus={towers}", "--local_parameter_device=cpu", *own)
        name = f"ancestor {case}"
        yield trained(of_case, f"cnnbench {case}", *flags, require_ratio(name, bound), group=case)
        if case in _CONVOLUTIONAL:
            yield _library(of_case, *flags, case=case, group=case)
        yield ancestor(of_case, *flags, towers=towers, name=name, group=case)


def _forward(options: Options) -> Subjects:
    flags = ("--forward_only",)
    frozen = (*flags, "--freeze_when_forward_only")
    in_bf16 = require_ratio("cnnbench", 1.6, needs_bf16=True)
    yield trained(options, "cnnbench", *flags, require_ratio("ancestor", 1.15))
    yield trained(options, "cnnbench", *flags, in_bf16, dtype="bf16")
    yield trained(options, "frozen", *frozen, require_ratio("cnnbench", 1.0))
    yield ancestor(options, *flags)


def _input(options: Options) -> Subjects:
    steps = {name: _INPUT_STEPS * getattr(options, name) for name in ("batches", "warmup")}
    of_input = options.but(model="resnet50", batch_size=_INPUT_BATCH, **steps)
    files = f"--data_dir={Path(options.data_dir or '').resolve()}"
    missing = "" if options.data_dir else "there are no ImageNet files"
    parts: tuple[Part, ...] = (
        *shared_flags(of_input),
        "--input_only",
        files,
        RESULT,
        require_ratio("tf.data", 0.97),
    )
    yield cnnbench(options, "cnnbench", *parts, read=read_loop, missing=missing)
    yield peer(of_input, "bare_input", files, name="tf.data", group="", missing=missing)


def _two(options: Options, name: str, mode: str, *parts: Part) -> Subject:
    """A training on two towers, each with half of the batch."""
    of_tower = options.but(batch_size=options.batch_size // 2)
    return trained(of_tower, name, "--num_gpus=2", f"--variable_update={mode}", *parts)


def _towers(options: Options) -> Subjects:
    yield trained(options, "one tower")
    for mode in ("parameter_server", "replicated", "independent"):
        yield _two(options, f"two {mode}", mode, require_ratio("one tower", 0.97))


def _reductions(options: Options) -> Subjects:
    yield _two(options, "none", "independent")
    for name, flags in _REDUCTIONS.items():
        yield _two(options, name, "replicated", *flags, require_ratio("none", 0.97))


def _of_workers(
    loop: str,
    modes: Mapping[str, float],
    options: Options,
    flags: Sequence[str] = (),
    tasks: Sequence[str] = (),
    **more: Any,
) -> Subjects:
    """Trainings with several workers in each mode, and a bare loop with as many workers."""
    options = _of_two_networks(options)
    workers = f"--workers={options.workers}"
    of_worker = options.but(batch_size=options.batch_size // options.workers)
    launch = ("launch", workers, *tasks, "--")
    for mode, bound in modes.items():
        parts: tuple[Part, ...] = (*flags, f"--variable_update={mode}", require_ratio(loop, bound))
        yield trained(of_worker, mode, *parts, launch=launch, **more)
    in_bursts = more.get("in_bursts", False)
    yield peer(options, "loop_steps", f"--strategy={loop}", workers, name=loop, in_bursts=in_bursts)


def _strategies(options: Options) -> Subjects:
    options = _of_two_networks(options)
    strategies = ("mirrored_strategy", "central_storage_strategy", "one_device_strategy")
    yield _two(options, "replicated", "replicated", require_ratio("mirrored_strategy", 1.0))
    for mode in strategies:
        bare = require_ratio(f"bare {mode}", 0.97)
        if mode == "one_device_strategy":
            yield trained(options, mode, "--num_gpus=1", f"--variable_update={mode}", bare)
        else:
            yield _two(options, mode, mode, bare)
    for mode in strategies:
        yield peer(options, "loop_steps", f"--strategy={mode}", name=f"bare {mode}")


def _of_two_networks(options: Options) -> Options:
    """The options with ResNet-50 or, for any other model, ResNet-20."""
    return options if options.model == "resnet50" else options.but(model="resnet20")


def _observed(options: Options) -> Subjects:
    often, seldom = max(1, options.batches // 4), max(1, options.batches // 2)
    options = options.but(model="resnet20", batch_size=_OBSERVED_BATCH)
    watched = (
        *(f"--trace_file={RECORD}.trace", f"--train_dir={RECORD}.train"),
        *("--summary_verbosity=2", f"--save_summaries_steps={often}"),
        f"--save_model_steps={seldom}",
    )
    yield trained(options, "cnnbench")
    yield trained(options, "observed", *watched, require_ratio("cnnbench", 0.99))


# Starts, memory and the harness alone.

_SECONDS: Mapping[str, Any] = {"at_most": True, "is_ratio": False}


def _trivial(options: Options, batches: int = 1, warmup: int = 1) -> tuple[str, ...]:
    """Flags that train the trivial network."""
    return shared_flags(options.but(model="trivial", batch_size=0, batches=batches, warmup=warmup))


def _start_cluster(options: Options) -> Subjects:
    job = ("launch", "--workers=2", "--ps=1", "--", "--variable_update=parameter_server")
    faster = require_ratio("three processes", 1 / 1.8, "seconds")
    yield cnnbench(options, "one process", *_trivial(options), faster)
    yield cnnbench(options, "three processes", *job, *_trivial(options))


def _overhead(options: Options) -> Subjects:
    flags = _trivial(options, options.overhead_batches, 10)
    share = require_value("harness / bare loop", "share_of_bare_loop", 0.97)
    yield child(options, "bare_loop", *flags, share, name="harness")


def _startup(options: Options) -> Subjects:
    start, imported = "start to first step", "import tensorflow"

    def after_import(start: Any, imported: Any) -> float:
        return float(start.seconds - imported.seconds)

    text = f"{start} - {imported}, s"
    later = Demand(after_import, 1.0, text, ((imported, "fp32"),), **_SECONDS)
    yield cnnbench(options, start, *_trivial(options), later)
    code = "import tensorflow; print('MEASURED', {}, flush=True)"
    python = options.cnnbench_python
    yield Subject(imported, "fp32", (python, "-c", code), read_first_line, python)
    for name, word, text, status in (
        ("--help", "--help", "cnnbench --help, s", 0),
        ("refused flag", "--batch_size=-1", "cnnbench with a refused flag, s", 2),
    ):
        quick = require_value(text, "seconds", 0.5, **_SECONDS)
        yield cnnbench(options, name, word, quick, read=read_duration, status=status)


def _process(options: Options) -> Subjects:
    """Measures whole processes: start, warm-up, timed steps and exit."""

    def less_time(other: str, bound: float | None) -> tuple[Demand, Demand]:
        return (
            require_ratio(other, bound, "seconds", "start to last step, ", at_most=True),
            require_ratio(other, None, "process_seconds", "start to exit, ", at_most=True),
        )

    subjects = (
        trained(options, "cnnbench", *less_time("ancestor", 0.8), *less_time("torch", None)),
        trained(options, "library", "--conv_gradients=library", *less_time("ancestor", 1.0)),
        peer(options, "torch_steps"),
        ancestor(options),
    )
    for subject in subjects:
        # Without turns, because turns begin after the first step, and the start is measured.
        yield dataclasses.replace(subject, read=until_last_step(subject.read), group="")


def _memory(options: Options) -> Subjects:
    steps = options.memory_batches
    # The baseline is after a tenth of the steps, because evaluations need additional memory.
    tenth = max(1, steps // 10)
    saving = (
        *(*_trivial(options, steps, 10), "--batch_size=8", "--data_name=cifar10"),
        *(f"--display_every={tenth}", "--num_eval_batches=2", f"--train_dir={RECORD}.train"),
        *("--save_model_steps=50", "--eval_during_training_every_n_steps=100"),
    )
    plain = (*_trivial(options, steps, 100), f"--display_every={steps}")
    text = "resident memory, last step / warm-up"
    of_saving = "the same with checkpoints and evaluations, last step / after a tenth"
    for name, flags, first, bound, shown in (
        ("cnnbench", plain, 1, 1.02, text),
        ("saving", saving, tenth, 1.03, of_saving),
    ):
        growth = require_value(shown, "memory_growth", bound, at_most=True)
        how: dict[str, Any] = {"read": memory_reader(first, steps), "watch_memory": is_step_line}
        yield cnnbench(options, name, *flags, growth, **how)


# Scenarios that only reduce, compared with TensorFlow's reductions.

_OURS = ("copy", "pscpu", "rechd", "xring")
_LARGE = (16, 64, 256)
_PACKS = 1
_BUILDS = {"resnet50": (2, 4, 8), "trivial": (8, 16, 32, 64)}
# Largest time in seconds for building a step.
_BUILD_SECONDS = 30.0

Figure: TypeAlias = Callable[[Reading], "float | None"]


def _reduced(
    options: Options, name: str, specs: Sequence[str], devices: Sequence[int], *parts: Part
) -> Subject:
    command = ("allreduce", "--device=cpu", f"--num_gpus={','.join(map(str, devices))}")
    specs = (f"--all_reduce_spec={','.join(specs)}", RESULT)
    return cnnbench(options, name, *command, *specs, *parts, read=read_reductions)


def _speed_up(key: Callable[[Point], object], mine: object, other: object) -> Figure:
    """Speed of one point relative to the speed of another point; `key` identifies points."""

    def figure(reading: Reading) -> float | None:
        # Points with wrong sums are excluded.
        rows = reading.document.rows
        times = {key(point): point.median_seconds for point in rows if not point.failed}
        return over(times.get(other), times.get(mine))

    return figure


def _gradients(options: Options) -> Subjects:
    """Reduces the gradients of ResNet-50 with each algorithm, and with TensorFlow."""
    peers = ("collective", "reduction_to_one_device")
    flags = ("--model=resnet50", f"--peers={peers[1]}", f"--num_batches={options.batches}")
    for devices in options.devices:
        text = f"ResNet-50, {devices} devices: speed of"
        demands = [
            Demand(_speed_up(operator.attrgetter("spec"), *pair), 1.0, f"{text} {' / '.join(pair)}")
            for pair in itertools.product(_OURS, peers)
        ]
        name = f"gradients on {devices} devices"
        yield _reduced(options, name, (*_OURS, peers[0]), [devices], *flags, *demands)


def _small(options: Options) -> Subjects:
    """Reduces many small tensors, packed and not packed."""
    flags = (
        *("--sizes=4K*1000", f"--num_batches={options.batches}", "--iters_per_step=2"),
        f"--gradient_repacking=0,{_PACKS}",
    )

    def key(point: Point) -> object:
        return point.spec, point.packing.gradient_repacking

    for devices in options.devices:
        text = f"1000 x 4 KiB, {devices} devices:"
        packed = {spec: _speed_up(key, (spec, _PACKS), (spec, 0)) for spec in _OURS}
        demands = (
            Demand(one, 3.0, f"{text} {spec} packed / unpacked") for spec, one in packed.items()
        )
        yield _reduced(
            options, f"small tensors on {devices} devices", _OURS, [devices], *flags, *demands
        )


def _large(options: Options) -> Subjects:
    """Reduces large tensors, and compares with an estimate from memory copies."""

    def share(size: int) -> Figure:
        def figure(reading: Reading) -> float | None:
            record: AllReduceRecord = reading.document
            found = [p for p in record.points if p.bytes == size << 20 and not p.failed]
            return record.copy_time_share(found[-1]) if found else None

        return figure

    sizes = f"--sizes={','.join(f'{size}M' for size in _LARGE)}"
    for devices in options.devices:
        text = f"MiB, {devices} devices: xring / memory-copy estimate"
        demands = (Demand(share(size), 0.6, f"{size} {text}") for size in _LARGE)
        name = f"large tensors on {devices} devices"
        batches = f"--num_batches={options.batches}"
        yield _reduced(options, name, ["xring"], [devices], sizes, batches, *demands)


def _build(options: Options) -> Subjects:
    """Traces and builds a step on increasing numbers of devices."""

    def seconds(spec: str, counts: Sequence[int], growth: bool) -> Figure:
        def figure(reading: Reading) -> float | None:
            points: Sequence[Point] = reading.document.points
            found = {p.devices: p.build_seconds or 0.0 for p in points if p.spec == spec}
            first, *_, last = (found.get(count, 0.0) for count in counts)
            if not all(found.get(count) for count in counts):
                return None
            return last / first * counts[0] / counts[-1] if growth else last

        return figure

    for model, counts in _BUILDS.items():
        demands = []
        for spec in _OURS:
            text = f"{model}, {counts[-1]} devices: {spec} traced and built, s"
            demands.append(Demand(seconds(spec, counts, False), _BUILD_SECONDS, text, **_SECONDS))
            text = f"{model}, {counts[0]} to {counts[-1]} devices: {spec} build time over devices"
            demands.append(Demand(seconds(spec, counts, True), 1.0, text, at_most=True))
        flags = (f"--model={model}", "--build_only")
        yield _reduced(options, f"build of {model}", _OURS, counts, *flags, *demands)


# Scenarios on emulated GPUs: the host's work in a step, and the share of reductions.

_EMULATOR = Path(__file__).parents[2] / "tests" / "gpu_emulator" / "build.py"
# Flags with which cnnbench runs on eight GPUs.
_MODES = {
    "cnnbench": ("--variable_update=replicated", "--all_reduce_spec=nccl"),
    "cnnbench mirrored_strategy": ("--variable_update=mirrored_strategy",),
    "cnnbench parameter_server": ("--variable_update=parameter_server",),
}
# Names and --program values of children/emulated_steps.py.
_PROGRAMS = {"bare tf.function": "bare", "bare MirroredStrategy": "mirrored", "Keras fit": "keras"}

# Durations of GPU operations are ten times those of a machine with 25 GB/s links.
# With such long durations, the host's threads do not delay the GPUs.
_DURATIONS = {
    "KERNEL_US": "100",
    "COPY_US": "100",
    "COPY_MB_PER_S": "2500",
    "RULES": "Conv2D=3000;NcclAllReduce=450;CollectiveReduce=450",
}
_MOST = 8


def _exposed(options: Options) -> Subjects:
    """Trains on eight GPUs with each reduction, and without reduction."""

    def milliseconds(mine: Reading, none: Reading) -> float:
        return 1e3 * float(mine.document["wall"] - none.document["wall"])

    emulated = partial(_emulated, options, gpus=_MOST, settings=_DURATIONS)
    yield emulated("none", "--variable_update=independent")
    for spec in ("nccl", "collective", "xring", "pscpu"):
        text, none = f"step with {spec} - without, ms", (("none", "fp32"),)
        longer = Demand(milliseconds, None, text, none, is_ratio=False)
        yield emulated(spec, _XRING[0], f"--all_reduce_spec={spec}", longer)


def _host(options: Options) -> Subjects:
    """Compares the host's CPU time on one and on eight GPUs."""

    def cpu_time(mine: Reading, other: Reading) -> float:
        return float(mine.document["cpu"] / other.document["cpu"])

    def name_of(program: str, gpus: int) -> str:
        return f"{program} on {gpus} GPU{'s' * (gpus > 1)}"

    def demands(gpus: int, others: Mapping[str, float | None]) -> Iterator[Demand]:
        for name, bound in others.items():
            text = f"CPU time, {name_of('cnnbench', gpus)} / {name}"
            yield Demand(cpu_time, bound, text, ((name_of(name, gpus), "fp32"),), at_most=True)

    peers = dict.fromkeys(_PROGRAMS, 1.0)
    others = {**peers, **{name: None for name in _MODES if name != "cnnbench"}}
    yield _emulated(options, name_of("cnnbench", 1), *demands(1, peers), gpus=1)
    for name, flags in _MODES.items():
        own = demands(_MOST, others) if name == "cnnbench" else ()
        yield _emulated(options, name_of(name, _MOST), *flags, *own, gpus=_MOST)
    for gpus in (1, _MOST):
        for name, program in _PROGRAMS.items():
            yield _emulated(options, name_of(name, gpus), gpus=gpus, program=program)


def _emulated(
    options: Options,
    name: str,
    *parts: Part,
    gpus: int,
    program: str = "cnnbench",
    settings: Mapping[str, str] | None = None,
) -> Subject:
    """Creates a subject on emulated GPUs. Each GPU has an eighth of --batch_size."""
    of_gpus = options.but(batch_size=max(1, options.batch_size // _MOST) * gpus)
    given = {"SKIP": "1", "TRACE": ".", **(settings or {"KERNEL_US": "50"})}
    environment = {
        **{f"HOSTGPU_{name}": value for name, value in given.items()},
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(gpus))),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    words = (f"--program={program}", f"--workers={gpus}", *parts)
    how: dict[str, Any] = {"read": read_document, "environment": environment, "group": ""}
    made = peer(of_gpus, "emulated_steps", *words, name=name, **how)
    start = (made.python, str(_EMULATOR), str(gpus))
    return dataclasses.replace(made, parts=(*start, *made.parts))


SCENARIOS: dict[str, Callable[[Options], Subjects]] = {
    "resnet50": _resnet50,
    **{network: partial(_classic, network) for network in _CLASSIC},
    "ancestor": _against_ancestor,
    "forward": _forward,
    "input": _input,
    "towers": _towers,
    "reductions": _reductions,
    "collective": partial(
        _of_workers,
        "workers",
        {"collective_all_reduce": 1 / 1.05, "multi_worker_mirrored_strategy": 0.97},
    ),
    "controller": partial(
        _of_workers,
        "controller",
        {"distributed_all_reduce": 1 / 1.05},
        flags=("--all_reduce_spec=copy",),
    ),
    # In this scenario, an update uses the images of one worker.
    "coordinator": partial(
        _of_workers,
        "coordinator",
        {"parameter_server_strategy": 0.97},
        tasks=("--ps=1",),
        read=read_loop,
        in_bursts=True,
    ),
    "start_cluster": _start_cluster,
    "strategies": _strategies,
    "overhead": _overhead,
    "startup": _startup,
    "process": _process,
    "memory": _memory,
    "observed": _observed,
    "gradients": _gradients,
    "small": _small,
    "large": _large,
    "build": _build,
    "host": _host,
    "exposed": _exposed,
}
"""Functions that return the subjects of a scenario for some options, by name of the scenario."""


def scenario_subjects(scenario: str, options: Options) -> list[Subject]:
    """Returns all subjects of a scenario, ignoring ``--only``."""
    if not options.model:
        own = "resnet20" if scenario == "strategies" else "resnet50"
        options = options.but(model=own)
    return list(SCENARIOS[scenario](options))


def demands_of(options: Options) -> list[Demand]:
    """Returns all requirements of the chosen scenarios."""
    return [
        demand.for_subject(scenario, subject.key)
        for scenario in options.chosen
        for subject in scenario_subjects(scenario, options)
        for demand in subject.demands
    ]


def _python(contents: str) -> str:
    """Declares an option for an interpreter."""
    found: str = flag(sys.executable, f"Interpreter with {contents}.", path="file")
    return found


@dataclasses.dataclass(kw_only=True)
class Options:
    """Command-line options: scenarios to compare, and durations."""

    scenarios: str = flag(",".join(SCENARIOS), "Scenarios, separated by commas.")
    only: str = flag(
        "",
        "Only these programs, separated by commas, such as cnnbench,torch or cnnbench:bf16; by "
        "default, all.",
    )
    model: str = flag("", "Network; by default resnet50, and resnet20 in scenario strategies.")
    rounds: int = flag(5, "Rounds; confidence intervals need at least 2.", minimum=1)
    batches: int = flag(20, "Timed steps of a measurement.", minimum=1)
    warmup: int = flag(5, "Steps before the timed steps.", minimum=1)
    batch_size: int = flag(8, "Images per step of all towers together.", minimum=1)
    workers: int = flag(
        2, "Workers in scenarios collective, controller and coordinator.", minimum=1
    )
    devices: tuple[int, ...] = flag(
        (2, 4), "Numbers of logical devices in scenarios gradients, small and large.", minimum=2
    )
    turn_seconds: float = flag(
        0.0,
        "Length in seconds of the time slices in which the programs of a round are interleaved; "
        "all must fit into memory together. With 0, they run one after the other.",
        minimum=0,
    )
    overhead_batches: int = flag(2000, "Steps in scenario overhead.", minimum=1)
    memory_batches: int = flag(10000, "Steps in scenario memory.", minimum=1)
    matmul_size: int = flag(2048, "Rows and columns of the matrices in matrix products.", minimum=1)
    seed: int = flag(1, "Seed of the order of programs in rounds.")
    timeout: float = flag(1200.0, "Seconds until a process is killed.", above=0)
    csv: str | None = flag(None, "Write every measurement to this new file.", path="file")
    keep: str | None = flag(None, "Keep every process's record in this folder.", path="folder")
    data_dir: str | None = flag(
        None, "ImageNet files for input; by default, generated photographs.", path="folder"
    )
    ancestor: str | None = flag(None, "Folder of tf_cnn_benchmarks.py.", path="folder")
    cnnbench_python: str = _python("cnnbench")
    keras_python: str = _python("Keras 3")
    torch_python: str = _python("PyTorch")
    ancestor_python: str = _python("TensorFlow and tf_keras")

    def __post_init__(self) -> None:
        for name in ("cnnbench_python", "keras_python", "torch_python", "ancestor_python"):
            # Symbolic links are kept, because resolving them would leave a virtual environment.
            given = getattr(self, name)
            setattr(self, name, os.path.abspath(shutil.which(given) or given))

    def check(self) -> None:
        """Raises UsageError if options contradict each other."""
        if not self.chosen or set(self.chosen) - set(SCENARIOS):
            raise FlagError("scenarios", self.scenarios, f"choose from {', '.join(SCENARIOS)}")
        if self.batch_size % 2 and {"towers", "strategies"} & {*self.chosen}:
            raise UsageError("--batch_size must be even: each of two towers gets half of it")
        if self.batch_size % self.workers and set(OF_WORKERS) & {*self.chosen}:
            raise UsageError(
                "--batch_size must be a multiple of --workers: each worker gets an equal part"
            )
        if self.keep is not None and not Path(self.keep).is_dir():
            raise PathError(self.keep, "--keep needs an existing folder")

    def but(self, **changes: Any) -> Options:
        """Returns a copy of these options with some other values."""
        return dataclasses.replace(self, **changes)

    @property
    def chosen(self) -> tuple[str, ...]:
        """The names of the chosen scenarios."""
        return split_comma_separated(self.scenarios)
