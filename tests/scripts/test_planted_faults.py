"""scripts/planted_faults: its table follows the product."""

import planted_faults
import pytest


@pytest.mark.parametrize("name", planted_faults.FAULTS)
def test_each_fault_is_at_one_place_and_its_tests_exist(name):
    fault = planted_faults.FAULTS[name]
    path, text = fault.site(planted_faults.ROOT)
    assert text != path.read_text("utf-8")
    assert all((planted_faults.ROOT / tests).exists() for tests in fault.tests.split())
