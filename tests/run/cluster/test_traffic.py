"""What a step sends: TensorFlow's own graphs, the record's number and the formulas agree."""

import math

import pytest
from oracle import sent_by_all
from worker_runs import counts_of

pytestmark = pytest.mark.slow

SMALL = {"model": "trivial", "data_name": "cifar10", "batch_size": 1, "weight_decay": 0.0}


def job(workers, mode, spec="", ps=0):
    given = {"all_reduce_spec": spec} if spec else {}
    return {**SMALL, "variable_update": mode, "workers": workers, "ps": ps, **given}


REDUCED = "distributed_all_reduce"
# The formula of each gradient: algorithm and shards, of small ones and of those beyond 2 KiB.
PS = [("ps", 1)] * 2
CASES = {
    "ps 3": (job(3, "parameter_server", ps=2), PS),
    "shadows 4": (job(4, "distributed_replicated", ps=2), PS),
    "halves 4": (job(4, REDUCED, "hierarchical_copy"), [("hierarchical_copy", 1)] * 2),
    "hybrid 3": (job(3, REDUCED, "pscpu:2K:xring"), [("psgpu", 1), ("xring", 1)]),
    "rechd 3": (job(3, REDUCED, "rechd"), [("rechd", 1)] * 2),
    "shards 2": (job(2, REDUCED, "psgpu#2"), [("psgpu", 2)] * 2),
}


@pytest.fixture(scope="module")
def counts():
    return dict(zip(CASES, counts_of([case for case, _ in CASES.values()]), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_messages_and_bytes_of_a_step(name, counts):
    case, (small, large) = CASES[name]
    found, workers = counts[name], case["workers"]
    # Scalars: the loss of every worker but one, and the rate to every other process with updates.
    messages = workers - 1 + (case["ps"] or workers - 1)
    sent = 4 * messages
    for shape in found["gradients"]:
        elements = math.prod(shape)
        algorithm, shards = small if 4 * elements <= 2048 else large
        # A ps task sends each value to all workers, and they send it a gradient each.
        of_tensor = 2 * workers, 2 * workers * 4 * elements
        if algorithm != "ps":
            of_tensor = sent_by_all(algorithm, elements, workers, shards)
        messages, sent = messages + of_tensor[0], sent + of_tensor[1]
    assert found["graph"] == [pytest.approx(messages), pytest.approx(sent)]
    assert found["sends"] == found["graph"][0]
    # Of what is done in each task, not of each variable.
    assert found["signals"] <= 2 * (workers + case["ps"])
