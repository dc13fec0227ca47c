"""Subjects of each scenario: commands, and readers of their output."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from peers.emulated import emulated_subjects
from peers.options import ALONE, CLASSIC, EMULATED, Options, cnnbench_command
from peers.programs import (
    CHILDREN,
    RECORD,
    Subject,
    ancestor_of,
    loop_of,
    matmul,
    ours,
    peer_of,
    sgd,
    shared_flags,
    trained,
)
from peers.readers import (
    Reader,
    is_step_line,
    memory_reader,
    read_child,
    read_duration,
    read_first_line,
    read_first_step,
    read_loop,
    read_record,
)
from peers.reductions import reduction_subjects

MODES = ("parameter_server", "replicated", "independent")
# In the step of two towers, by the flags of each; packed, all in eight parts.
REDUCTIONS = {
    **{spec: (f"--all_reduce_spec={spec}",) for spec in ("copy", "pscpu", "rechd", "xring")},
    "xring packed": ("--all_reduce_spec=xring", "--gradient_repacking=8"),
    "collective": ("--all_reduce_spec=collective",),
}
PER_WORKER = ("collective_all_reduce", "multi_worker_mirrored_strategy")
STRATEGIES = ("mirrored_strategy", "central_storage_strategy", "one_device_strategy")
DTYPES = ("fp32", "bf16")


@dataclasses.dataclass(frozen=True)
class Against:
    """A training that is compared with tf_cnn_benchmarks only.

    Attributes:
      times: steps for each of --batches, where they are short.
    """

    name: str
    model: str
    batch_size: int
    bound: float
    times: int = 1
    towers: int = 1
    flags: tuple[str, ...] = ()


_XRING = ("--variable_update=replicated", "--all_reduce_spec=xring")
AGAINST = (
    Against("resnet50_v1.5", "resnet50_v1.5", 16, 1.05),
    Against("resnet20", "resnet20", 128, 1.05, times=2),
    Against("lenet", "lenet", 32, 1.1, times=10),
    Against("trivial", "trivial", 32, 1.2, times=10),
    Against("trivial, 4 towers", "trivial", 32, 1.4, times=4, towers=4, flags=_XRING),
    *(
        Against(f"2 towers, {name}", "resnet50", 4, 1.1, towers=2, flags=flags)
        for name, flags in {
            "parameter_server": ("--variable_update=parameter_server",),
            "xring": _XRING,
            "pscpu": ("--variable_update=replicated", "--all_reduce_spec=pscpu"),
            "independent": ("--variable_update=independent",),
        }.items()
    ),
)


# Of the classic networks, whatever --batch_size says of the others.
CLASSIC_BATCH = 16
# Those that keras.applications has too.
IN_KERAS = ("vgg16", "inception3")
# Images of a step of input, and how many steps for one of --batches: they are short.
INPUT_BATCH, INPUT_STEPS = 64, 5
# Images of a step of ResNet-20 that is observed: so few that what comes between steps would show.
OBSERVED_BATCH = 32


def scenario_subjects(scenario: str, options: Options) -> list[Subject]:
    """All subjects of a scenario, before ``--only``."""
    makers: Mapping[str, Callable[[Options], list[Subject]]] = {
        "resnet50": _training,
        **{name: functools.partial(_classic, name) for name in CLASSIC},
        "ancestor": _against_ancestor,
        "forward": _forward,
        "input": _input,
        "towers": _towers,
        "reductions": _reductions,
        "collective": _collective,
        "strategies": _strategies,
        "controller": _controller,
        "coordinator": _coordinator,
        "start_cluster": _start_cluster,
        "overhead": _overhead,
        "startup": _startup,
        "memory": _memory,
        "observed": _observed,
        **dict.fromkeys(EMULATED, functools.partial(emulated_subjects, scenario)),
        **dict.fromkeys(ALONE, functools.partial(reduction_subjects, scenario)),
    }
    if not options.model:
        own = "resnet20" if scenario == "strategies" else "resnet50"
        options = dataclasses.replace(options, model=own)
    return makers[scenario](options)


def chosen(subjects: Sequence[Subject], only: Sequence[str]) -> list[Subject]:
    """Those that ``--only`` names: ``name`` or ``name:dtype``; all when it is empty."""
    return [s for s in subjects if not only or s.name in only or f"{s.name}:{s.dtype}" in only]


def _training(options: Options) -> list[Subject]:
    keras, torch = options.keras_python, options.torch_python
    return [
        *(trained("cnnbench", options, dtype) for dtype in DTYPES),
        *(peer_of("keras", keras, ("keras", "tensorflow"), dtype, options) for dtype in DTYPES),
        *(peer_of("torch", torch, ("torch",), dtype, options) for dtype in DTYPES),
        ancestor_of(options),
        *(matmul(options, dtype) for dtype in DTYPES),
    ]


def _classic(scenario: str, options: Options) -> list[Subject]:
    model = "densenet40_k12" if scenario == "densenet40" else scenario
    options = dataclasses.replace(options, model=model, batch_size=CLASSIC_BATCH)
    subjects = [trained("cnnbench", options, "fp32"), ancestor_of(options)]
    if scenario in IN_KERAS:
        python = options.keras_python
        subjects.append(peer_of("keras", python, ("keras", "tensorflow"), "fp32", options))
    if scenario == "vgg16":
        subjects.append(matmul(options, "fp32"))
    return subjects


def _against_ancestor(options: Options) -> list[Subject]:
    subjects = []
    for case in AGAINST:
        of_case = dataclasses.replace(
            options,
            model=case.model,
            batch_size=case.batch_size,
            batches=case.times * options.batches,
            warmup=case.times * options.warmup,
        )
        flags = (f"--num_gpus={case.towers}", "--local_parameter_device=cpu", *case.flags)
        pair = {
            "cnnbench": trained("", of_case, "fp32", flags),
            "ancestor": ancestor_of(of_case, flags, case.towers),
        }
        for program, subject in pair.items():
            name = f"{program} {case.name}"
            subjects.append(dataclasses.replace(subject, name=name, group=case.name))
    return subjects


def _forward(options: Options) -> list[Subject]:
    forward = ("--forward_only",)
    frozen = (*forward, "--freeze_when_forward_only")
    return [
        *(trained("cnnbench", options, dtype, forward) for dtype in DTYPES),
        *(trained("frozen", options, dtype, frozen) for dtype in ("fp32", "int8")),
        ancestor_of(options, forward),
    ]


def _input(options: Options) -> list[Subject]:
    steps = INPUT_STEPS * options.batches
    flags = shared_flags("resnet50", INPUT_BATCH, steps, INPUT_STEPS * options.warmup)
    cnnbench = cnnbench_command(options.cnnbench_python)
    files = f"--data_dir={Path(options.data_dir or '').resolve()}"
    missing = "" if options.data_dir else "there are no ImageNet files"
    own = (*cnnbench, *flags, "--input_only", files, f"--result_json={RECORD}")
    python = options.cnnbench_python
    bare = (
        *(python, str(CHILDREN / "bare_input.py"), files, f"--batch_size={INPUT_BATCH}"),
        *(f"--batches={steps}", f"--warmup={INPUT_STEPS * options.warmup}"),
    )
    return [
        ours("cnnbench", own, options, read_loop, missing=missing),
        Subject("tf.data", "fp32", bare, read_child, python, ("tensorflow",), missing=missing),
    ]


def _towers(options: Options) -> list[Subject]:
    two = options.batch_size // 2
    flags = {mode: ["--num_gpus=2", f"--variable_update={mode}"] for mode in MODES}
    return [
        trained("one tower", options, "fp32"),
        *(trained(f"two {mode}", options, "fp32", flags[mode], two) for mode in MODES),
    ]


def _reductions(options: Options) -> list[Subject]:
    def two(name: str, mode: str, *more: str) -> Subject:
        flags = ("--num_gpus=2", f"--variable_update={mode}", *more)
        return trained(name, options, "fp32", flags, options.batch_size // 2)

    none = two("none", "independent")
    return [none, *(two(name, "replicated", *flags) for name, flags in REDUCTIONS.items())]


def _collective(options: Options) -> list[Subject]:
    return _of_workers(PER_WORKER, "workers", (), options)


def _controller(options: Options) -> list[Subject]:
    copies = ("--all_reduce_spec=copy",)
    return _of_workers(("distributed_all_reduce",), "controller", copies, options)


def _coordinator(options: Options) -> list[Subject]:
    # An update has the images of one worker.
    mode, ps = ("parameter_server_strategy",), ("--ps=1",)
    subjects = _of_workers(mode, "coordinator", (), options, ps, read_loop)
    return [dataclasses.replace(subject, in_bursts=True) for subject in subjects]


def _of_workers(
    modes: Sequence[str],
    peer: str,
    more: Sequence[str],
    options: Options,
    others: Sequence[str] = (),
    read: Reader | None = None,
) -> list[Subject]:
    """Workers in each mode, and a bare loop over as many."""
    options, data = _of_two_networks(options)
    workers = f"--workers={options.workers}"
    part = options.batch_size // options.workers
    flags = shared_flags(options.model, part, options.batches, options.warmup)
    launch = (*cnnbench_command(options.cnnbench_python), "launch", workers, *others, "--")
    record = ("--display_every=1", f"--result_json={RECORD}")
    own = (*launch, *flags, *sgd(), data, *more, *record)
    reader = read or read_record
    return [
        *(ours(m, (*own, f"--variable_update={m}"), options, reader) for m in modes),
        loop_of(peer, peer, options, [workers]),
    ]


def _start_cluster(options: Options) -> list[Subject]:
    cnnbench = cnnbench_command(options.cnnbench_python)
    training = shared_flags("trivial", 0, 1, 1)
    job = ("launch", "--workers=2", "--ps=1", "--", "--variable_update=parameter_server")
    return [
        ours("one process", (*cnnbench, *training), options, read_first_step),
        ours("three processes", (*cnnbench, *job, *training), options, read_first_step),
    ]


def _strategies(options: Options) -> list[Subject]:
    options, data = _of_two_networks(options)
    subjects = []
    for mode in ("replicated", *STRATEGIES):
        devices = 1 if mode == "one_device_strategy" else 2
        flags = [data, f"--num_gpus={devices}", f"--variable_update={mode}"]
        subjects.append(trained(mode, options, "fp32", flags, options.batch_size // devices))
    return [*subjects, *(loop_of(f"bare {mode}", mode, options) for mode in STRATEGIES)]


def _of_two_networks(options: Options) -> tuple[Options, str]:
    """ResNet-50, or else ResNet-20, which bare loops over cnnbench's networks know; its data."""
    if options.model == "resnet50":
        return options, "--data_name=imagenet"
    return dataclasses.replace(options, model="resnet20"), "--data_name=cifar10"


def _overhead(options: Options) -> list[Subject]:
    flags = shared_flags("trivial", 0, options.overhead_batches, 10)
    child = str(CHILDREN / "bare_loop.py")
    command = (options.cnnbench_python, child, *flags)
    return [ours("harness", command, options, read_child)]


def _startup(options: Options) -> list[Subject]:
    python, cnnbench = options.cnnbench_python, cnnbench_command(options.cnnbench_python)
    start = (python, "-c", "import tensorflow; print('MEASURED', {}, flush=True)")
    training = (*cnnbench, *shared_flags("trivial", 0, 1, 1))
    refused = (*cnnbench, "--batch_size=-1")
    return [
        ours("start to first step", training, options, read_first_step),
        ours("import tensorflow", start, options, read_first_line),
        ours("--help", (*cnnbench, "--help"), options, read_duration),
        ours("refused flag", refused, options, read_duration, status=2),
    ]


def _memory(options: Options) -> list[Subject]:
    steps = options.memory_batches
    cnnbench = cnnbench_command(options.cnnbench_python)
    plain = (*cnnbench, *shared_flags("trivial", 0, steps, 100), f"--display_every={steps}")
    # Compared with the memory after a tenth of the steps: evaluations have memory of their own.
    tenth = max(1, steps // 10)
    saving = (
        *(*cnnbench, *shared_flags("trivial", 8, steps, 10), "--data_name=cifar10"),
        *(f"--display_every={tenth}", "--num_eval_batches=2", f"--train_dir={RECORD}.train"),
        *("--save_model_steps=50", "--eval_during_training_every_n_steps=100"),
    )
    return [
        ours("cnnbench", plain, options, memory_reader(1, steps), watch_memory=is_step_line),
        ours("saving", saving, options, memory_reader(tenth, steps), watch_memory=is_step_line),
    ]


def _observed(options: Options) -> list[Subject]:
    often, seldom = max(1, options.batches // 4), max(1, options.batches // 2)
    options = dataclasses.replace(options, model="resnet20", batch_size=OBSERVED_BATCH)
    watched = (
        *(f"--trace_file={RECORD}.trace", f"--train_dir={RECORD}.train"),
        *("--summary_verbosity=2", f"--save_summaries_steps={often}"),
        f"--save_model_steps={seldom}",
    )
    return [
        trained("cnnbench", options, "fp32"),
        trained("observed", options, "fp32", watched),
    ]
