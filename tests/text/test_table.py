import pytest

from cnnbench.text.table import natural_key


@pytest.mark.parametrize(
    "ordered",
    [
        ["alexnet", "resnet20", "resnet20_v2", "resnet110"],
        ["9.00", "10.00", "100.00"],
        ["lenet, batch 8, xla", "lenet, batch 16", "lenet, batch 128"],
        ["resnet50_v1", "resnet50_v1.5", "resnet50_v2"],
        ["", "1", "a", "a1", "a1b", "b"],
        ["a/2/x.json", "a/10/x.json"],
    ],
)
def test_numbers_within_names_sort_by_value(ordered):
    shuffled = list(reversed(ordered))
    assert sorted(shuffled, key=natural_key) == ordered
