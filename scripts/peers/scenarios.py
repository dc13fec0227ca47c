"""The scenarios: their subjects, and the requirements of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from peers.demands import Demand, against, alone
from peers.emulated import exposed, host
from peers.process import is_step_line
from peers.programs import (
    RECORD,
    RESULT,
    Subject,
    ancestor,
    child,
    cnnbench,
    matmul,
    peer,
    shared_flags,
    trained,
)
from peers.readers import (
    memory_reader,
    read_duration,
    read_first_line,
    read_loop,
)
from peers.reductions import build, gradients, large, small

if TYPE_CHECKING:
    from peers.options import Options

DTYPES = ("fp32", "bf16")
OF_WORKERS = ("collective", "controller", "coordinator")

_FLOPS = "achieved_flops_per_sec"
_MEMORY = against("ancestor", 0.9, "peak_bytes", "peak memory, ", at_most=True)
_KERAS = against("keras", 1.15)
_CLASSIC = {
    "alexnet": (against("ancestor", 1.15), _MEMORY),
    "vgg16": (against("ancestor", 1.15), _KERAS, against("matmul", 0.85, _FLOPS)),
    "googlenet": (against("ancestor", 1.0),),
    "inception3": (against("ancestor", 1.0), _KERAS),
    "densenet40": (against("ancestor", 1.0),),
}
# Batch size of the classic networks; --batch_size is that of the others.
_CLASSIC_BATCH = 16

_XRING = ("--variable_update=replicated", "--all_reduce_spec=xring")
# Trainings that are compared with tf_cnn_benchmarks only: network, batch size, steps for each of
# --batches where they are short, towers, bound, and flags.
_AGAINST: dict[str, tuple[str, int, int, int, float, tuple[str, ...]]] = {
    "resnet50_v1.5": ("resnet50_v1.5", 16, 1, 1, 1.05, ()),
    "resnet20": ("resnet20", 128, 2, 1, 1.05, ()),
    "lenet": ("lenet", 32, 10, 1, 1.1, ()),
    "trivial": ("trivial", 32, 10, 1, 1.2, ()),
    "trivial, 4 towers": ("trivial", 32, 4, 4, 1.4, _XRING),
    **{
        f"2 towers, {name}": ("resnet50", 4, 1, 2, 1.1, flags)
        for name, flags in {
            "parameter_server": ("--variable_update=parameter_server",),
            "xring": _XRING,
            "pscpu": ("--variable_update=replicated", "--all_reduce_spec=pscpu"),
            "independent": ("--variable_update=independent",),
        }.items()
    },
}
# Of these, the networks whose gradients of convolutions take most of a step.
_CONVOLUTIONAL = ("resnet50_v1.5", "resnet20")
# In the step of two towers, by the flags of each; packed, all in eight parts.
_REDUCTIONS = {
    **{spec: (f"--all_reduce_spec={spec}",) for spec in ("copy", "pscpu", "rechd", "xring")},
    "xring packed": ("--all_reduce_spec=xring", "--gradient_repacking=8"),
    "collective": ("--all_reduce_spec=collective",),
}
# Images of a step of input, and how many steps for one of --batches: they are short.
_INPUT_BATCH, _INPUT_STEPS = 64, 5
# Images of a step of ResNet-20 that is observed: so few that what comes between steps would show.
_OBSERVED_BATCH = 32

Subjects: TypeAlias = Iterator[Subject]


def _library(options: Options, *flags: str, case: str = "", **more: Any) -> Subject:
    """A training with TensorFlow's own gradients of convolutions, those of tf_cnn_benchmarks."""
    name, other = (f"{one} {case}".strip() for one in ("library", "ancestor"))
    demands = (against(other, 1.0),)
    return trained(options, name, "--conv_gradients=library", *flags, demands=demands, **more)


def _resnet50(options: Options) -> Subjects:
    bf16: dict[str, Any] = {"needs_bf16": True}
    yield trained(
        options,
        "cnnbench",
        demands=(
            *(against("ancestor", 1.05), against("torch", 1.1), against("keras", 1.3)),
            *(against("matmul", 0.85, _FLOPS), _MEMORY),
        ),
    )
    yield trained(
        options,
        "cnnbench",
        dtype="bf16",
        demands=(
            *(against("cnnbench", 1.6, **bf16), against("torch:bf16", 1.1, **bf16)),
            against("matmul:bf16", 0.80, _FLOPS, **bf16),
        ),
    )
    for script in ("keras_steps", "torch_steps"):
        yield from (peer(options, script, dtype=dtype) for dtype in DTYPES)
    yield _library(options)
    yield ancestor(options)
    yield from (matmul(options, dtype) for dtype in DTYPES)


def _classic(network: str, options: Options) -> Subjects:
    model = "densenet40_k12" if network == "densenet40" else network
    options = options.but(model=model, batch_size=_CLASSIC_BATCH)
    others = {name for demand in _CLASSIC[network] for name, _ in demand.subjects}
    yield trained(options, "cnnbench", demands=_CLASSIC[network])
    yield _library(options)
    yield ancestor(options)
    if "keras" in others:
        yield peer(options, "keras_steps")
    if "matmul" in others:
        yield matmul(options, "fp32")


def _against_ancestor(options: Options) -> Subjects:
    for case, (model, batch, times, towers, bound, own) in _AGAINST.items():
        batches, warmup = times * options.batches, times * options.warmup
        of_case = options.but(model=model, batch_size=batch, batches=batches, warmup=warmup)
        flags = (f"--num_gpus={towers}", "--local_parameter_device=cpu", *own)
        name = f"ancestor {case}"
        demands = (against(name, bound),)
        yield trained(of_case, f"cnnbench {case}", *flags, group=case, demands=demands)
        if case in _CONVOLUTIONAL:
            yield _library(of_case, *flags, case=case, group=case)
        yield ancestor(of_case, *flags, towers=towers, name=name, group=case)


def _forward(options: Options) -> Subjects:
    def forward(name: str, dtype: str, *demands: Demand) -> Subject:
        frozen = ("--freeze_when_forward_only",) if name == "frozen" else ()
        return trained(options, name, "--forward_only", *frozen, dtype=dtype, demands=demands)

    yield forward("cnnbench", "fp32", against("ancestor", 1.15))
    yield forward("cnnbench", "bf16", against("cnnbench", 1.6, needs_bf16=True))
    yield forward("frozen", "fp32", against("cnnbench", 1.0))
    yield forward("frozen", "int8", against("frozen", 1.6))
    yield ancestor(options, "--forward_only")


def _input(options: Options) -> Subjects:
    steps = {name: _INPUT_STEPS * getattr(options, name) for name in ("batches", "warmup")}
    of_input = options.but(model="resnet50", batch_size=_INPUT_BATCH, **steps)
    files = f"--data_dir={Path(options.data_dir or '').resolve()}"
    missing = "" if options.data_dir else "there are no ImageNet files"
    flags = (*shared_flags(of_input), "--input_only", files, RESULT)
    demands = (against("tf.data", 0.97),)
    yield cnnbench(options, "cnnbench", *flags, read=read_loop, missing=missing, demands=demands)
    how: dict[str, Any] = {"name": "tf.data", "group": "", "missing": missing}
    yield peer(of_input, "bare_input", files, **how)


def _two(options: Options, name: str, mode: str, *flags: str, **more: Any) -> Subject:
    """A training on two towers, which divide the batch."""
    of_tower = options.but(batch_size=options.batch_size // 2)
    return trained(of_tower, name, "--num_gpus=2", f"--variable_update={mode}", *flags, **more)


def _towers(options: Options) -> Subjects:
    yield trained(options, "one tower")
    for mode in ("parameter_server", "replicated", "independent"):
        yield _two(options, f"two {mode}", mode, demands=(against("one tower", 0.97),))


def _reductions(options: Options) -> Subjects:
    yield _two(options, "none", "independent")
    for name, flags in _REDUCTIONS.items():
        yield _two(options, name, "replicated", *flags, demands=(against("none", 0.97),))


def _of_workers(
    loop: str,
    modes: Mapping[str, float],
    options: Options,
    flags: Sequence[str] = (),
    tasks: Sequence[str] = (),
    **more: Any,
) -> Subjects:
    """Workers in each mode, with its bound, and a bare loop over as many."""
    options = _of_two_networks(options)
    workers = f"--workers={options.workers}"
    of_worker = options.but(batch_size=options.batch_size // options.workers)
    launch = ("launch", workers, *tasks, "--")
    for mode, bound in modes.items():
        words = (*flags, f"--variable_update={mode}")
        demands = (against(loop, bound),)
        yield trained(of_worker, mode, *words, launch=launch, demands=demands, **more)
    in_bursts = more.get("in_bursts", False)
    yield peer(options, "loop_steps", f"--strategy={loop}", workers, name=loop, in_bursts=in_bursts)


_COLLECTIVE = {"collective_all_reduce": 1 / 1.05, "multi_worker_mirrored_strategy": 0.97}
_CONTROLLER = {"distributed_all_reduce": 1 / 1.05}
_COORDINATOR = {"parameter_server_strategy": 0.97}


def _strategies(options: Options) -> Subjects:
    options = _of_two_networks(options)
    strategies = ("mirrored_strategy", "central_storage_strategy", "one_device_strategy")
    demands = (against("mirrored_strategy", 1.0),)
    yield _two(options, "replicated", "replicated", demands=demands)
    for mode in strategies:
        demands = (against(f"bare {mode}", 0.97),)
        if mode == "one_device_strategy":
            flags = ("--num_gpus=1", f"--variable_update={mode}")
            yield trained(options, mode, *flags, demands=demands)
        else:
            yield _two(options, mode, mode, demands=demands)
    for mode in strategies:
        yield peer(options, "loop_steps", f"--strategy={mode}", name=f"bare {mode}")


def _of_two_networks(options: Options) -> Options:
    """ResNet-50, or else ResNet-20, which bare loops over cnnbench's networks know."""
    return options if options.model == "resnet50" else options.but(model="resnet20")


def _trivial(options: Options, batches: int = 1, warmup: int = 1) -> tuple[str, ...]:
    """Flags of the trivial network."""
    work = {"batch_size": 0, "batches": batches, "warmup": warmup}
    return shared_flags(options.but(model="trivial", **work))


def _start_cluster(options: Options) -> Subjects:
    job = ("launch", "--workers=2", "--ps=1", "--", "--variable_update=parameter_server")
    demands = (against("three processes", 1 / 1.8, "seconds"),)
    yield cnnbench(options, "one process", *_trivial(options), demands=demands)
    yield cnnbench(options, "three processes", *job, *_trivial(options))


def _overhead(options: Options) -> Subjects:
    flags = _trivial(options, options.overhead_batches, 10)
    demands = (alone("harness / bare loop", "share_of_bare_loop", 0.97),)
    yield child(options, "bare_loop.py", *flags, name="harness", demands=demands)


def _startup(options: Options) -> Subjects:
    start, imported = "start to first step", "import tensorflow"
    time: dict[str, Any] = {"at_most": True, "is_ratio": False}

    def after_import(start: Any, imported: Any) -> float:
        return float(start.seconds - imported.seconds)

    others = ((imported, "fp32"),)
    later = Demand(after_import, 1.0, f"{start} - {imported}, s", others, **time)
    yield cnnbench(options, start, *_trivial(options), demands=(later,))
    code = "import tensorflow; print('MEASURED', {}, flush=True)"
    python = options.cnnbench_python
    yield Subject(imported, "fp32", (python, "-c", code), read_first_line, python)
    for name, flag, text, status in (
        ("--help", "--help", "cnnbench --help, s", 0),
        ("refused flag", "--batch_size=-1", "cnnbench with a refused flag, s", 2),
    ):
        demands = (alone(text, "seconds", 0.5, **time),)
        yield cnnbench(options, name, flag, read=read_duration, status=status, demands=demands)


def _memory(options: Options) -> Subjects:
    steps = options.memory_batches
    # Compared with the memory after a tenth of the steps: evaluations have memory of their own.
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
        how: dict[str, Any] = {"read": memory_reader(first, steps), "watch_memory": is_step_line}
        demands = (alone(shown, "memory_growth", bound, at_most=True),)
        yield cnnbench(options, name, *flags, demands=demands, **how)


def _observed(options: Options) -> Subjects:
    often, seldom = max(1, options.batches // 4), max(1, options.batches // 2)
    options = options.but(model="resnet20", batch_size=_OBSERVED_BATCH)
    watched = (
        *(f"--trace_file={RECORD}.trace", f"--train_dir={RECORD}.train"),
        *("--summary_verbosity=2", f"--save_summaries_steps={often}"),
        f"--save_model_steps={seldom}",
    )
    yield trained(options, "cnnbench")
    yield trained(options, "observed", *watched, demands=(against("cnnbench", 0.99),))


SCENARIOS: dict[str, Callable[[Options], Subjects]] = {
    "resnet50": _resnet50,
    **{network: partial(_classic, network) for network in _CLASSIC},
    "ancestor": _against_ancestor,
    "forward": _forward,
    "input": _input,
    "towers": _towers,
    "reductions": _reductions,
    "collective": partial(_of_workers, "workers", _COLLECTIVE),
    "controller": partial(
        _of_workers, "controller", _CONTROLLER, flags=("--all_reduce_spec=copy",)
    ),
    # An update has the images of one worker.
    "coordinator": partial(
        _of_workers,
        "coordinator",
        _COORDINATOR,
        tasks=("--ps=1",),
        read=read_loop,
        in_bursts=True,
    ),
    "start_cluster": _start_cluster,
    "strategies": _strategies,
    "overhead": _overhead,
    "startup": _startup,
    "memory": _memory,
    "observed": _observed,
    "gradients": gradients,
    "small": small,
    "large": large,
    "build": build,
    "host": host,
    "exposed": exposed,
}


def scenario_subjects(scenario: str, options: Options) -> list[Subject]:
    """All subjects of a scenario, before ``--only``."""
    if not options.model:
        own = "resnet20" if scenario == "strategies" else "resnet50"
        options = options.but(model=own)
    return list(SCENARIOS[scenario](options))


def demands_of(options: Options) -> list[Demand]:
    """The demands of the chosen scenarios."""
    return [
        demand.of(scenario, subject.key)
        for scenario in options.chosen
        for subject in scenario_subjects(scenario, options)
        for demand in subject.demands
    ]
