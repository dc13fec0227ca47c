"""Observers of plug-ins: functions that make them, and what they must return.

Tests cnnbench/run/driver/observers/observer.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from registries import kept

from cnnbench.base.plugins import PluginInterfaceError
from cnnbench.errors import UsageError
from cnnbench.run.driver.observers import Observer, PausingObserver, register_observer
from cnnbench.run.driver.observers.observer import OBSERVERS, TrainingState


@pytest.fixture(autouse=True)
def own_observers() -> Iterator[None]:
    with kept(OBSERVERS):
        yield


class Own(PausingObserver):
    def needs_pause_after(self, global_step: int) -> Any:
        return global_step if global_step > 1 else True

    def training_paused(self, state: TrainingState) -> None:
        pass


@pytest.mark.parametrize("made", [Own(), None])
def test_a_function_makes_an_observer_or_none(made: Observer | None) -> None:
    def make(params: object) -> Observer | None:
        return made

    assert register_observer("own")(make) is make
    assert OBSERVERS["own"](None) is made
    with pytest.raises(UsageError, match="observer own is registered already"):
        register_observer("own")(make)


def test_other_objects_are_named() -> None:
    register_observer("own")(lambda params: 3)  # type: ignore[arg-type, return-value]
    with pytest.raises(PluginInterfaceError, match=r"must return an Observer, not 3"):
        OBSERVERS["own"](None)
    with pytest.raises(PluginInterfaceError, match=r"must take \(params\)"):
        register_observer("other")(lambda: None)  # type: ignore[arg-type, misc]
    with pytest.raises(UsageError, match="an observer needs a name"):
        register_observer("")(lambda params: None)
    assert [*OBSERVERS] == ["own"]


def test_methods_are_checked() -> None:
    assert Own().needs_pause_after(1) is True
    with pytest.raises(PluginInterfaceError, match=r"Own\.needs_pause_after\(\) must return a b"):
        Own().needs_pause_after(2)
    with pytest.raises(PluginInterfaceError, match=r"must take \(self, state\)"):
        type("Wrong", (Observer,), {"training_paused": lambda self: None})
