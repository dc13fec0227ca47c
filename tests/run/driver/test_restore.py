"""What a run does before it trains."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cnnbench.run.driver.restore import broadcast_from_chief, resume_input
from cnnbench.run.driver.work import EvaluationWork


@pytest.mark.parametrize(
    ("asynchronous", "examples", "steps"),
    [
        (False, 40, 10),
        (False, 41, 11),  # of runs with other batches: no example twice
        (True, 40, 4),  # ten updates by three workers
    ],
)
def test_an_input_goes_on_behind_the_examples_of_earlier_runs(asynchronous, examples, steps):
    place = SimpleNamespace(asynchronous=asynchronous, job=SimpleNamespace(num_workers=3))
    plan = SimpleNamespace(length=SimpleNamespace(global_batch=4), place=place)
    asked: list[object] = []
    inputs = SimpleNamespace(resume=lambda *given: asked.append(given) or True)
    told: list[str] = []
    run = SimpleNamespace(plan=plan, messages=SimpleNamespace(notice=told.append))
    resume_input(run, inputs, examples, (3,))
    assert asked == [(steps, (3,))]
    assert told == [f"the input continues after the {examples} examples trained on"]


def test_every_worker_gets_the_numbers_that_the_chief_has_restored():
    sent: list[bytes] = []

    def work(workers):
        manager = SimpleNamespace(
            workers=workers, savable_variables=dict, broadcast_from_chief=list
        )
        others = dict.fromkeys(("devices", "checkpoints", "evaluator"))
        return EvaluationWork(manager=manager, exporters=(), folder="", **others)

    job = work(SimpleNamespace(gather_bytes=lambda own: sent.append(own) or sent))
    of_chief = [4, 32, 0, 3, 1]  # with the skipped records of two shards
    assert broadcast_from_chief(job, *of_chief) == of_chief
    assert broadcast_from_chief(job, 0, 0, 5) == of_chief
    assert broadcast_from_chief(work(None), 4) == [4]
