"""Sides of comparisons that never ran: disturbed and pausing pairs, networks of other sizes."""

from __future__ import annotations

import random

from cnnbench.records.run import ConditionNote, Conditions, ModelInfo

WALL_NOISE = (0.78, 1.3, 0.9, 1.12, 0.83, 1.22, 1.05, 0.95)
CPU_NOISE = (1.01, 0.99, 1.005, 0.995, 1.0, 1.01, 0.992, 1.003)
CALM = (1.0, 1.001, 0.999, 1.002, 1.0, 0.998, 1.001, 1.0)


def network(flops, parameters=10):
    return ModelInfo(
        name="lenet",
        parameters=parameters,
        trainable_parameters=parameters,
        forward_flops_per_image=flops // 3,
        training_flops_per_image=flops,
    )


def conditions(*ids, others=1.0, steal=0.0):
    """The conditions of a run that the IDs disturbed."""
    notes = tuple(ConditionNote(id=one, when="during", text="x", advice="y") for one in ids)
    during = {"other_cpus": others, "steal_fraction": steal}
    return Conditions(before={}, during=during, notes=notes)


BUSY = conditions("load")


def disturbed(runs, wall, cpu, wall_noise=WALL_NOISE, *, found=BUSY, **more):
    """Runs of A and of B, whose steps take `wall` and `cpu` times as long, give or take noise."""

    def run(wall, cpu):
        times = {"step_seconds": (0.08 * wall,) * 3, "step_cpu_seconds": (0.08 * cpu,) * 3}
        return runs(conditions=found, **{**times, **more})

    noise = list(zip(wall_noise, CPU_NOISE, strict=False))
    return [run(1.0, 1.0) for _ in noise], [run(wall * w, cpu * c) for w, c in noise]


def every(distance, extra):
    """Pauses of `extra` seconds in steps at a distance."""
    return lambda step: extra if step % distance == distance - 1 else 0.0


def paused(runs, name, pause=lambda step: 0.0, stalled=()):
    """Eight runs of a side of 200 steps of 40 ms, which a pause makes longer.

    Args:
      pause: the seconds by number of the step.
      stalled: numbers of pairs with a stall that is as long as 100 steps.
    """
    draw, made = random.Random(name), []
    for pair in range(1, 9):
        seconds = [0.04 * draw.gauss(1, 0.01) + pause(step) for step in range(200)]
        seconds[20] += 4.0 if pair in stalled else 0.0
        place = {"side": name, "seed": 1, "pair": pair, "position": 1}
        made.append(runs(step_seconds=tuple(seconds), losses=(), ab=place))
    return made
