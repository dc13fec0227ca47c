"""The wording of explanations, in a terminal and in Markdown: constructed profiles against files.

Tests cnnbench/judge/explain/causes.py, cnnbench/judge/explain/facts.py,
cnnbench/judge/explain/phrases.py and cnnbench/judge/explain/blocks.py.

Other tests of this folder test kinds, places and values. UPDATE_GOLDEN=1 writes the files anew.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from golden import golden
from step_profiles import CONV, Profiles, Row, changed, network, paused, with_records

from cnnbench.base.document.console import sections_to_text
from cnnbench.base.document.markdown import sections_to_comment
from cnnbench.judge.explain import explain
from cnnbench.judge.explain.blocks import explanation_sections
from cnnbench.records.profiles import (
    FORWARD,
    GAPS,
    INPUT,
    INPUT_WAIT,
    OUTSIDE,
    PROGRAM,
    REDUCTION,
    REST,
    TO_KERNEL,
    UPDATE,
    Primitive,
    ProfiledLayer,
    StepPartKey,
)
from cnnbench.records.run import Conditions

GOLDEN = Path(__file__).parent / "golden"
HOT = StepPartKey("conv2", CONV, TO_KERNEL)
UPDATES, REDUCED = (StepPartKey(REST, kind, OUTSIDE) for kind in (UPDATE, REDUCTION))
EVERYTHING = changed(lambda part: part.direction not in (INPUT, "host"), 1.6)
PLAIN = network()


def row(part, factor=1.0, **changes):
    """The network with another time, or other operations, of one row."""
    return {**PLAIN, part: PLAIN[part].times(factor, **changes)}


def layers(*names, kind=CONV):
    return tuple(
        ProfiledLayer(
            name=name,
            kind=kind,
            shapes=((1, 1, 8, 8) if "1x1" in kind else (3, 3, 8, 8),),
            parameters=64,
            flops=1,
        )
        for name in names
    )


FOUR = layers("conv0", "conv1", "conv2", "conv3")


class Sides:
    """Makes A and B of profiles on an idle machine."""

    def __init__(self, make):
        self.make = make

    def of(self, rows=None, base=None, flags=None, processes=(3, 3), base_layers=None, **new):
        """B has these rows, flags and layers."""
        a = self.make.side(base, processes[0], layers=base_layers, **(flags or {}))
        return a, self.make.side(rows, processes[1], **new)

    def under(self, rows, a, b):
        """Both sides under measuring conditions."""
        return [
            with_records(side, conditions=[Conditions(before={}, during=during)] * len(side))
            for side, during in zip(self.of(rows), (a, b), strict=True)
        ]

    def logged(self, rows, *implementations):
        """The first process of each side logs a kernel of oneDNN."""
        sides = self.of(rows)
        for side, implementation in zip(sides, implementations, strict=True):
            kernel = Primitive(
                name="convolution",
                propagation="backward_weights",
                calls=4,
                types="f32",
                implementation=implementation,
                layouts="src acdb, wei Acdb64a, dst acdb",
            )
            side[0] = dataclasses.replace(side[0], primitives=(kernel,))
        return sides

    def with_step_seconds(self, rows, base=None, new=None):
        """Sides whose timed steps took these seconds, a number for each process."""
        return [
            side
            if seconds is None
            else with_records(side, step_seconds=[(one,) * 8 for one in seconds])
            for side, seconds in zip(self.of(rows), (base, new), strict=True)
        ]

    def with_pauses(self, part, steps):
        """B has 0.3 s more in some of its 24 steps."""
        a, b = self.of()
        return [
            [paused(one, part, more, steps) for one in side] for side, more in ((a, 0.0), (b, 0.3))
        ]


NORMS = {
    StepPartKey(part.layer, "other", part.direction) if part.kind == "batch norm" else part: (
        one.times(3.0, operations={"Mean float32": 2, "Mul float32": 3})
        if part.kind == "batch norm"
        else one
    )
    for part, one in PLAIN.items()
}
SINGLE = {
    **changed(lambda part: part[:2] == ("conv3", CONV), 1.8, network("float32")),
    **{part: one for part, one in PLAIN.items() if part[:2] != ("conv3", CONV)},
    StepPartKey("conv3", "cast", FORWARD): Row(0.4, operations={"Cast float32": 2}),
}
GONE = {part: one for part, one in PLAIN.items() if part.layer != "conv1"}
DENSE = {
    **{part: one for part, one in PLAIN.items() if not part.layer.startswith("conv")},
    **{StepPartKey(f"affine{n}", "dense", FORWARD): Row(4.0, 10**8) for n in range(5)},
}
COPYING = row(UPDATES, 4.0, operations={**PLAIN[UPDATES].operations, "DeepCopy": 400})
BATCH = {
    part: one.times(1.5, flops=one.flops * 3 // 2) if one.flops else one
    for part, one in PLAIN.items()
}
TWICE = changed(lambda part: part[:2] == ("conv1", CONV), 2.0, flops=2 * 10**9)
THREADS = changed(lambda part: part.layer.startswith("conv"), 1.8)
CLOCK = {"cpu_clock_mhz": 3400}, {"cpu_clock_mhz": 2100}
BUSY = (
    {"gpu_clocks_mhz": [1980, 1980], "other_cpus": 0.1, "steal_fraction": 0.0},
    {
        "gpu_clocks_mhz": [1980, 1200],
        "gpu_throttle_reasons": ["1: power_cap, thermal_software"],
        "other_cpus": 1.6,
        "steal_fraction": 0.125,
    },
)

EXPLAINED = {
    "no difference": lambda s: s.of(),
    "one process of each": lambda s: s.of(row(PROGRAM, 10.0), processes=(1, 3)),
    "a slower kernel": lambda s: s.of(row(HOT, 1.7)),
    "a faster kernel": lambda s: s.of(base=row(HOT, 1.7)),
    "another implementation of oneDNN": lambda s: s.logged(row(HOT, 1.7), "jit:avx2", "gemm:jit"),
    "twice the work": lambda s: s.of(TWICE),
    "other work in the same time": lambda s: s.of(
        changed(lambda part: part[:2] == ("conv1", CONV), 1.0, flops=2 * 10**9)
    ),
    "another precision": lambda s: s.of(SINGLE, precision="bf16"),
    "batch norm that is not fused": lambda s: s.of(NORMS),
    "copied weights": lambda s: s.of(COPYING),
    "copies that slow down the rest": lambda s: s.of(
        changed(lambda part: part.layer != REST, 1.4, COPYING)
    ),
    "another optimizer": lambda s: s.of(
        row(UPDATES, 2.5, operations={"ResourceApplyAdam": 12}),
        flags={"optimizer": "sgd"},
        optimizer="adam",
    ),
    "clipped gradients": lambda s: s.of(
        row(UPDATES, 2.5), flags={"optimizer": "lion"}, optimizer="lion", gradient_clip=1.0
    ),
    "a slower input": lambda s: s.of(row(INPUT_WAIT, 60.0)),
    "a sleeping program": lambda s: s.of(row(PROGRAM, 10.0)),
    "gaps": lambda s: s.of(row(GAPS, 6.0)),
    "fewer threads": lambda s: s.of(THREADS, flags={"num_intra_threads": 2}, num_intra_threads=1),
    "another reduction": lambda s: s.of(
        row(REDUCED, 2.2, operations={"AddN float32": 3, "ConcatV2 float32": 9}),
        all_reduce_spec="xring",
    ),
    "another batch": lambda s: s.of(BATCH, flags={"batch_size": 32}, batch_size=48),
    "another layer": lambda s: s.of(
        {**PLAIN, StepPartKey("conv9", CONV, FORWARD): Row(5.0, 10**9)}
    ),
    "a layer that is gone": lambda s: s.of(GONE),
    "an inserted layer": lambda s: s.of(
        {**PLAIN, StepPartKey("small", "convolution 1x1", FORWARD): Row(6.0, 10**8)},
        base_layers=FOUR,
        layers=(*FOUR[:3], *layers("small", kind="convolution 1x1"), FOUR[3]),
    ),
    "a layer of another shape": lambda s: s.of(
        changed(lambda part: part[:2] == ("conv3", CONV), 1.6, flops=2 * 10**9),
        base_layers=FOUR,
        layers=(*FOUR[:3], dataclasses.replace(FOUR[3], shapes=((3, 3, 8, 16),), parameters=99)),
    ),
    "another network": lambda s: s.of(
        DENSE, base_layers=FOUR, layers=layers(*(f"affine{n}" for n in range(5)), kind="dense")
    ),
    "everything": lambda s: s.of(EVERYTHING),
    "everything, at a lower clock": lambda s: s.under(EVERYTHING, *CLOCK),
    "everything, on busy machines": lambda s: s.under(EVERYTHING, *BUSY),
    "a step that cannot be told": lambda s: s.with_step_seconds(
        row(HOT, 1.7), base=(0.05, 0.1, 0.15)
    ),
    "against the difference of the step": lambda s: s.with_step_seconds(
        row(HOT, 1.7), new=(0.07, 0.07, 0.07)
    ),
    "rows of which none is significant": lambda s: s.with_step_seconds(
        PLAIN, new=(0.15, 0.15, 0.15)
    ),
    "a whole step by chance": lambda s: s.with_step_seconds(PLAIN, base=(0.01, 0.9, 2.0)),
    "pauses in every third step": lambda s: s.with_pauses(PROGRAM, range(0, 24, 3)),
    "pauses at irregular distances": lambda s: s.with_pauses(INPUT_WAIT, {2, 3, 9, 14, 22}),
}


def test_transcripts(lenet_runs, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    terminal, markdown = [], []
    for title, make in EXPLAINED.items():
        towers = 1 if "optimizer" in title or "clipped" in title else 2
        sides = Sides(Profiles(lenet_runs(), load=0.0, towers=towers))
        found = explain(*make(sides))
        shown = explanation_sections(found, 2)
        terminal.append(f"== {title}\n{sections_to_text(shown)}")
        if title in ("another precision", "no difference", "other work in the same time"):
            markdown.append(sections_to_comment(shown, "cnnbench: why"))
    text = "\n".join(terminal)
    assert text == golden(GOLDEN / "terminal.txt", text)
    text = "\n".join(markdown)
    assert text == golden(GOLDEN / "comment.md", text)
