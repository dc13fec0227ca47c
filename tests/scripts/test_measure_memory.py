"""The estimate of memory beside what processes really take."""

from __future__ import annotations

import measure_memory
import pytest
from command_line import run_script

pytestmark = pytest.mark.slow


def test_six_networks_two_batches_one_and_two_devices() -> None:
    found = list(measure_memory.cases([]))
    assert len(found) == len(set(found)) == 6 * 2 * 2


# The whole is scripts/measure_memory.
@pytest.mark.timeout(250)
def test_a_real_process(capsys: pytest.CaptureFixture[str]) -> None:
    assert measure_memory.main(["lenet:imagenet:64:1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_an_estimate_that_is_wrong_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for peak, status in ((131, 1), (129, 0)):
        monkeypatch.setattr(measure_memory, "memory_bytes", lambda *case, peak=peak: (peak, 100))
        assert measure_memory.main(["lenet:imagenet:1:1"]) == status


@pytest.mark.parametrize("wrong", ["lenet", "lenet:imagenet:1", "lenet:imagenet:1:x", "--model=x"])
def test_wrong_use_is_one_line(
    wrong: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = ["scripts/measure_memory.py", "lenet:imagenet:1:1"]
    for words, status in (([*script, wrong], 2), ([*script, "--help"], 0)):
        monkeypatch.setattr("sys.argv", words)
        with pytest.raises(SystemExit) as stopped:
            run_script(measure_memory.main, measure_memory.__doc__)
        assert stopped.value.code == status
    out, err = capsys.readouterr()
    assert err == (
        f"measure_memory: error: '{wrong}' is not MODEL:DATA:BATCH:DEVICES, such as "
        "lenet:imagenet:256:1\n"
    )
    assert out == f"{measure_memory.__doc__}\n"
