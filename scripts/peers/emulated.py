"""What the host does for GPUs in a step, and what reductions add to it, on emulated GPUs.

They compute nothing: durations of their work are set, not measured, and CPU time is the host's.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from cnnbench.base.text.table import aligned
from peers.demands import Demand, Key, Round
from peers.measurement import Measurement, Reading
from peers.options import EMULATED, Options
from peers.process import EndedProcess
from peers.programs import Subject, peer_of
from peers.readers import measured_by_child

BUILD = Path(__file__).parents[2] / "tests" / "gpu_emulator" / "build.py"
REDUCTIONS = ("nccl", "collective", "xring", "pscpu")
_NCCL = ("--variable_update=replicated", "--all_reduce_spec=nccl")
_OWN = {mode: (f"--variable_update={mode}",) for mode in ("mirrored_strategy", "parameter_server")}
# Programs of children/emulated_steps.py.
_PEERS = {"bare tf.function": "bare", "bare MirroredStrategy": "mirrored", "Keras fit": "keras"}

# Ten times those of a machine whose links have 25 GB/s, so that the host's threads are not in the
# way: small kernels, convolutions, copies, and an all-reduce of a gradient of average size.
_DURATIONS = {
    "KERNEL_US": "100",
    "COPY_US": "100",
    "COPY_MB_PER_S": "2500",
    "RULES": "Conv2D=3000;NcclAllReduce=450;CollectiveReduce=450",
}
_MOST = 8


def emulated_subjects(scenario: str, options: Options) -> list[Subject]:
    """Programs on one and on eight GPUs; or each reduction, and none, on eight."""
    if scenario == "exposed":
        none = _subject("none", _MOST, options, ("--variable_update=independent",), _DURATIONS)
        replicated = "--variable_update=replicated"
        flags = {spec: (replicated, f"--all_reduce_spec={spec}") for spec in REDUCTIONS}
        return [none, *(_subject(n, _MOST, options, f, _DURATIONS) for n, f in flags.items())]
    own = {"cnnbench": _NCCL, **{f"cnnbench {mode}": flags for mode, flags in _OWN.items()}}
    return [
        _subject(_name("cnnbench", 1), 1, options),
        *(_subject(_name(name, _MOST), _MOST, options, flags) for name, flags in own.items()),
        *(
            _subject(_name(name, gpus), gpus, options, program=program)
            for gpus in (1, _MOST)
            for name, program in _PEERS.items()
        ),
    ]


def _name(program: str, gpus: int) -> str:
    return f"{program} on {gpus} GPU{'s' * (gpus > 1)}"


def _subject(
    name: str,
    gpus: int,
    options: Options,
    flags: Sequence[str] = (),
    settings: Mapping[str, str] | None = None,
    program: str = "cnnbench",
) -> Subject:
    """A program, with as many images on each GPU as it has of --batch_size on eight."""
    python, images = options.cnnbench_python, max(1, options.batch_size // _MOST) * gpus
    more = (f"--program={program}", f"--workers={gpus}", *flags)
    modules = ("cnnbench", "tensorflow")
    of_gpus = dataclasses.replace(options, batch_size=images)
    made = peer_of("emulated", python, modules, "fp32", of_gpus, more)
    given = {"SKIP": "1", "TRACE": ".", **(settings or {"KERNEL_US": "50"})}
    return dataclasses.replace(
        made,
        name=name,
        command=(python, str(BUILD), str(gpus), *made.command),
        read=read_work,
        environment={
            **{f"HOSTGPU_{name}": value for name, value in given.items()},
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(gpus))),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        },
    )


def read_work(finished: EndedProcess, _: Path) -> Reading:
    """What a step takes; see ``Meter.measured`` in ``children/emulated_steps.py``."""
    return Reading(document=measured_by_child(finished))


def _difference(spec: str) -> Demand:
    mine, none = (spec, "fp32"), ("none", "fp32")

    def exposed(readings: Round) -> float:
        return 1e3 * float(readings[mine].document["wall"] - readings[none].document["wall"])

    text = f"step with {spec} - without, ms"
    return Demand("exposed", text, (mine, none), exposed, None, is_ratio=False)


def _cpu_time(name: str, gpus: int) -> Demand:
    mine, other = ((_name(each, gpus), "fp32") for each in ("cnnbench", name))

    def ratio(readings: Round, mine: Key = mine, other: Key = other) -> float:
        return float(readings[mine].document["cpu"] / readings[other].document["cpu"])

    bound = 1.0 if name in _PEERS else None
    return Demand(
        "host", f"CPU time, {mine[0]} / {name}", (mine, other), ratio, bound, at_most=True
    )


DEMANDS = (
    *(_cpu_time(name, gpus) for gpus in (1, _MOST) for name in _PEERS),
    *(_cpu_time(f"cnnbench {mode}", _MOST) for mode in _OWN),
    *map(_difference, REDUCTIONS),
)


def work_table(measurements: Sequence[Measurement]) -> list[str]:
    """Medians over rounds of what a step takes: counts and bytes of all GPUs, times, idle share."""
    rows: list[tuple[str, ...]] = [
        (
            *("scenario", "program", "rounds", "kernels", "to GPUs", "to host", "between GPUs"),
            *("wall ms", "idle", "host CPU ms"),
        )
    ]
    groups: dict[tuple[str, str], list[Mapping[str, float]]] = {}
    for one in measurements:
        if one.scenario in EMULATED and one.reading is not None:
            groups.setdefault((one.scenario, one.subject), []).append(one.reading.document)
    for key, rounds in groups.items():
        middle = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
        copies = (
            f"{middle[k]:.0f} ({_size(middle[f'{k}_bytes'])})" for k in ("htod", "dtoh", "dtod")
        )
        times = (
            f"{1e3 * middle['wall']:.0f}",
            f"{middle['idle']:.2f}",
            f"{1e3 * middle['cpu']:.1f}",
        )
        rows.append((*key, str(len(rounds)), f"{middle['kernels']:.0f}", *copies, *times))
    return ["On emulated GPUs", *aligned(rows, left=(0, 1)), ""] if groups else []


def _size(size: float) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size:.0f} B"
