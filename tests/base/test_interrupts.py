"""Interrupts that arrive as other exceptions."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cnnbench import cli
from cnnbench.base import interrupts, plugins
from cnnbench.base.interrupts import (
    SIGNALS,
    begin_command,
    conclude_command,
    delaying_interrupts,
    errors_as_interrupts,
    find_grace_announcement,
    grace_announcement,
    handling_signals,
    interrupt_grace_seconds,
    raise_if_interrupted,
)
from cnnbench.errors import BenchmarkError


def plain() -> None:
    signal.raise_signal(signal.SIGTERM)


def mixed_up() -> None:
    """As native code that drops the exception and goes on."""
    with contextlib.suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
    raise SystemError("Objects/listobject.c:343: bad argument to internal function")


def misread() -> None:
    """As native code that takes any exception for a wrong argument."""
    try:
        signal.raise_signal(signal.SIGTERM)
    except KeyboardInterrupt as error:
        raise ValueError("Attempt to convert a value with an unsupported type") from error


def failing_afterwards() -> None:
    """As a record that cannot be written after an interrupt."""
    try:
        signal.raise_signal(signal.SIGTERM)
    except KeyboardInterrupt:
        raise BenchmarkError("the disk is full") from None


class Dropping:
    """Python drops what its destructor raises."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


def dropped() -> None:
    Dropping()


WAYS = (plain, mixed_up, misread)


@pytest.fixture
def handled() -> Iterator[None]:
    with handling_signals():
        begin_command()
        yield
        conclude_command()


@pytest.mark.usefixtures("handled")
@pytest.mark.parametrize("way", WAYS)
def test_what_native_code_makes_of_an_interrupt_is_one(way: Callable[[], None]) -> None:
    with pytest.raises(KeyboardInterrupt), errors_as_interrupts():
        way()
    begin_command()
    with pytest.raises(KeyboardInterrupt), plugins.reporting_plugin_errors(BenchmarkError):
        way()


@pytest.mark.usefixtures("handled")
def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(KeyboardInterrupt), errors_as_interrupts():
        plain()
    with pytest.raises(SystemError, match="bad argument"), errors_as_interrupts():
        raise SystemError("bad argument")  # the interrupt was before
    begin_command()
    with pytest.raises(BenchmarkError, match="disk"), errors_as_interrupts():
        failing_afterwards()
    with pytest.raises(KeyboardInterrupt), errors_as_interrupts():  # by another handler
        raise SystemError("returned a result with an exception set") from KeyboardInterrupt()


@pytest.mark.usefixtures("quick_start")
@pytest.mark.parametrize("way", [misread, dropped])
def test_a_run_ends_as_by_an_interrupt(
    way: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    from cnnbench.run.step.train_step import TrainStep

    launch, rates, path = TrainStep.__call__, [], tmp_path / "r.json"

    def launching(self: TrainStep, rate: float) -> Any:
        rates.append(rate)
        if len(rates) == 4:
            way()
        return launch(self, rate)

    monkeypatch.setattr(TrainStep, "__call__", launching)
    before = [signal.getsignal(number) for number in SIGNALS]
    flags = ("--model=trivial", "--data_name=cifar10", "--device=cpu", "--num_warmup_batches=1")
    assert cli.main([*flags, f"--result_json={path}", "--quiet_conditions=all"]) == 130
    assert [signal.getsignal(number) for number in SIGNALS] == before  # of the calling program
    (line,) = (one for one in capsys.readouterr().err.splitlines() if "error" in one)
    assert line == "cnnbench: error: interrupted"
    record = json.loads(path.read_text())
    assert (record["status"], record["error"]) == ("interrupted", None)
    assert record["step_seconds"]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_delivered_after_the_block(number):
    """Also behind one that is ignored, as SIGHUP is under nohup."""
    ignored = SIGNALS[number == SIGNALS[0]]
    done: list[str] = []

    def work():
        with delaying_interrupts():
            os.kill(os.getpid(), ignored)
            os.kill(os.getpid(), number)
            done.append("the block")

    with handling_signals():
        signal.signal(ignored, signal.SIG_IGN)
        begin_command()
        with pytest.raises(KeyboardInterrupt):
            work()
        conclude_command()
    assert done == ["the block"]


@pytest.mark.usefixtures("handled")
def test_an_interrupt_that_python_drops_is_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    raise_if_interrupted()
    dropped()
    with pytest.raises(KeyboardInterrupt):
        raise_if_interrupted()
    assert conclude_command()  # the command was interrupted
    assert not conclude_command()  # is told once
    raise_if_interrupted()
    signal.raise_signal(signal.SIGTERM)  # after the answer
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("path", ["__main__.py", "campaigns/processes/guard.py"])
def test_files_without_imports_know_all_signals(path):
    names = ", ".join(f'"{one.name.removeprefix("SIG")}"' for one in SIGNALS)
    source = (Path(interrupts.__file__).parents[1] / path).read_text()
    assert f"for name in ({names}):" in source


@pytest.mark.parametrize(
    ("longest", "seconds"), [(0.0, 10.0), (0.5, 10.0), (6.0, 14.0), (16.0, 34.0)]
)
def test_the_grace_follows_the_longest_step(longest, seconds):
    assert interrupt_grace_seconds(longest) == seconds
    line = grace_announcement(interrupt_grace_seconds(longest))
    assert find_grace_announcement(f"log\ncnnbench: {line}\nmore").group(1) == f"{seconds:.0f}"
    with delaying_interrupts():
        assert interrupt_grace_seconds(longest) == seconds + 60.0
