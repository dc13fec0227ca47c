"""Work of the host for GPUs in a step, and the part of reductions in it, on emulated GPUs.

They compute nothing: durations of their work are set, not measured, and CPU time is the host's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cnnbench.base.stats import median
from cnnbench.base.terminal import aligned
from peers.demands import Demand
from peers.measurement import Measurement, Reading
from peers.programs import Subject, peer
from peers.readers import read_document

if TYPE_CHECKING:
    from peers.options import Options

BUILD = Path(__file__).parents[2] / "tests" / "gpu_emulator" / "build.py"
# Flags of cnnbench on eight GPUs.
_OWN = {
    "cnnbench": ("--variable_update=replicated", "--all_reduce_spec=nccl"),
    "cnnbench mirrored_strategy": ("--variable_update=mirrored_strategy",),
    "cnnbench parameter_server": ("--variable_update=parameter_server",),
}
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


def exposed(options: Options) -> Iterator[Subject]:
    """Runs with each reduction, and with none, on eight GPUs."""

    def milliseconds(mine: Reading, none: Reading) -> float:
        return 1e3 * float(mine.document["wall"] - none.document["wall"])

    independent = ("--variable_update=independent",)
    yield _subject("none", _MOST, options, independent, settings=_DURATIONS)
    for spec in ("nccl", "collective", "xring", "pscpu"):
        flags = ("--variable_update=replicated", f"--all_reduce_spec={spec}")
        text, none = f"step with {spec} - without, ms", (("none", "fp32"),)
        demand = Demand(milliseconds, None, text, none, is_ratio=False)
        yield _subject(spec, _MOST, options, flags, settings=_DURATIONS, demands=(demand,))


def host(options: Options) -> Iterator[Subject]:
    """Programs on one and on eight GPUs."""

    def cpu_time(mine: Reading, other: Reading) -> float:
        return float(mine.document["cpu"] / other.document["cpu"])

    def demands(gpus: int, others: Mapping[str, float | None]) -> tuple[Demand, ...]:
        return tuple(
            Demand(
                cpu_time,
                bound,
                f"CPU time, {_name('cnnbench', gpus)} / {name}",
                (key,),
                at_most=True,
            )
            for name, bound in others.items()
            for key in [(_name(name, gpus), "fp32")]
        )

    peers = dict.fromkeys(_PEERS, 1.0)
    one = _name("cnnbench", 1)
    yield _subject(one, 1, options, demands=demands(1, peers))
    of_most = {**peers, **{name: None for name in _OWN if name != "cnnbench"}}
    for name, flags in _OWN.items():
        own = demands(_MOST, of_most) if name == "cnnbench" else ()
        yield _subject(_name(name, _MOST), _MOST, options, flags, demands=own)
    for gpus in (1, _MOST):
        for name, program in _PEERS.items():
            yield _subject(_name(name, gpus), gpus, options, program=program)


def _name(program: str, gpus: int) -> str:
    return f"{program} on {gpus} GPU{'s' * (gpus > 1)}"


def _subject(
    name: str,
    gpus: int,
    options: Options,
    flags: Sequence[str] = (),
    program: str = "cnnbench",
    settings: Mapping[str, str] | None = None,
    **more: Any,
) -> Subject:
    """A program; every GPU has an eighth of the images of --batch_size."""
    of_gpus = options.but(batch_size=max(1, options.batch_size // _MOST) * gpus)
    words = (f"--program={program}", f"--workers={gpus}", *flags)
    given = {"SKIP": "1", "TRACE": ".", **(settings or {"KERNEL_US": "50"})}
    environment = {
        **{f"HOSTGPU_{name}": value for name, value in given.items()},
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(gpus))),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    how: dict[str, Any] = {"read": read_document, "environment": environment, "group": ""}
    made = peer(of_gpus, "emulated_steps", *words, name=name, **how, **more)
    return replace(made, command=(made.python, str(BUILD), str(gpus), *made.command))


def work_table(measurements: Sequence[Measurement]) -> list[str]:
    """Medians over rounds of the work of a step: counts and bytes of all GPUs, times, idleness."""
    rows: list[tuple[str, ...]] = [
        (
            *("scenario", "program", "rounds", "kernels", "to GPUs", "to host", "between GPUs"),
            *("wall ms", "idle", "host CPU ms"),
        )
    ]
    groups: dict[tuple[str, str], list[Mapping[str, float]]] = {}
    for one in measurements:
        if one.reading is not None and isinstance(one.reading.document, dict):
            groups.setdefault((one.scenario, one.subject), []).append(one.reading.document)
    for key, rounds in groups.items():
        middle = {name: median(one[name] for one in rounds) for name in rounds[0]}
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
