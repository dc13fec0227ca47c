"""The estimate of memory beside what processes really take."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts/measure_memory.py"


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("measure_memory", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_six_networks_two_batches_one_and_two_devices(script: ModuleType) -> None:
    found = list(script.cases([]))
    assert len(found) == len(set(found)) == 6 * 2 * 2


# The whole is scripts/measure_memory.
@pytest.mark.timeout(250)
def test_a_real_process(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["lenet:imagenet:1024:1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_an_estimate_that_is_wrong_is_told(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "measured", lambda *case: (131, 100))
    assert script.main(["lenet:imagenet:1:1"]) == 1
    monkeypatch.setattr(script, "measured", lambda *case: (129, 100))
    assert script.main(["lenet:imagenet:1:1"]) == 0
