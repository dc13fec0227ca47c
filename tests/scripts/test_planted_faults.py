"""scripts/planted_faults: its table follows the product."""

import planted_faults
import pytest


@pytest.mark.parametrize("name", planted_faults.FAULTS)
def test_each_fault_is_at_one_place_and_its_tests_exist(name):
    fault = planted_faults.FAULTS[name]
    path, text = fault.site(planted_faults.ROOT)
    assert text != path.read_text("utf-8")
    assert all((planted_faults.ROOT / tests).exists() for tests in fault.tests.split())


def test_tests_that_cannot_start_are_no_result(tmp_path, monkeypatch):
    monkeypatch.setattr(planted_faults.sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match="/bin/false -m pytest"):
        planted_faults.failed_tests(tmp_path, ["tests"])


@pytest.mark.slow
def test_the_names_of_failed_tests_are_returned_slow_ones_only_if_asked_for(tmp_path):
    slow = "import pytest\n@pytest.mark.slow\ndef test_slow(): assert 0\n"
    (tmp_path / "test_two.py").write_text(f"def test_a(): pass\ndef test_b(): assert 0\n{slow}")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    everyday, slow = (f"test_two.py::test_{name}" for name in ("b", "slow"))
    failed = planted_faults.failed_tests
    assert failed(tmp_path, ["test_two.py"]) == [everyday]
    assert sorted(failed(tmp_path, ["test_two.py"], slow=True)) == [everyday, slow]
