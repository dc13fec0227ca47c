"""Which spec is fastest for which size."""

from cnnbench.predict.crossovers import Range, winners
from cnnbench.predict.links import Link
from cnnbench.predict.network import Network
from cnnbench.predict.packing import Packing
from cnnbench.predict.tensor import Tensor
from cnnbench.variable_mgr.all_reduce.spec import parse_all_reduce_spec

NETWORK = Network(Link("test", 1e-5, 1e-10, 1e-12))


def specs(*texts):
    return [parse_all_reduce_spec(text) for text in texts]


def test_halving_doubling_for_small_tensors_ring_for_large_ones():
    """On 6 devices the ring moves less than 4 + 2 by halving do, in more messages."""
    candidates = specs("xring", "rechd")
    ranges = winners(NETWORK, candidates, 6)
    assert [part.spec for part in ranges] == ["rechd", "xring"]
    assert ranges[-1].up_to is None
    crossover = ranges[0].up_to
    below, above = (
        [
            NETWORK.seconds(spec, (Tensor(round(crossover * factor / 4)),), 6, Packing())
            for spec in candidates
        ]
        for factor in (0.95, 1.05)
    )
    assert below[1] < below[0]
    assert above[0] < above[1]


def test_one_spec_wins_everywhere():
    assert winners(NETWORK, specs("xring"), 8) == (Range("xring", None),)


def test_of_equals_the_first_wins():
    assert winners(NETWORK, specs("psgpu", "copy"), 8) == (Range("psgpu", None),)


def test_nothing_to_compare():
    assert winners(NETWORK, specs("xring#16"), 8) == ()
