"""Registries: objects by name, in order, each once; packages are loaded for unknown names only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cnnbench.base import plugins
from cnnbench.base.registry import Registry, SpecRegistry
from cnnbench.errors import BenchmarkError, FlagError, UsageError

GROUP = "cnnbench.things"


@dataclass(frozen=True, kw_only=True)
class Thing:
    name: str
    work: Callable[[], int]
    size: int = 1


@pytest.fixture
def things() -> Iterator[SpecRegistry[Thing]]:
    """The registry of a kind of this test, which a plug-in reaches as `builtins.things`."""
    made = SpecRegistry(
        Thing, "work", kind="thing", call="register_thing(Thing(...))", flag="thing", group=GROUP
    )
    made.register(Thing(name="small", work=lambda: 1))
    yield made
    del plugins._kinds["thing"]


def test_an_object_is_found_by_its_name(things: SpecRegistry[Thing]) -> None:
    large = things.register(Thing(name="large", work=lambda: 2))
    assert things.find("large") is large
    assert [*things] == ["small", "large"]
    with pytest.raises(UsageError, match="thing large is registered already; choose another name"):
        things.register(large)
    assert things.find("large") is large


def test_a_decorator_declares_and_registers(things: SpecRegistry[Thing]) -> None:
    @things.register("double", size=2)
    def work() -> int:
        return 4

    assert work() == 4
    assert things["double"] == Thing(name="double", work=work, size=2)


@pytest.mark.parametrize("wrong", [3, None, object])
def test_other_objects_are_refused(wrong: Any, things: SpecRegistry[Thing]) -> None:
    with pytest.raises(UsageError, match="is not of type Thing"):
        things.register(wrong)
    assert [*things] == ["small"]


def test_unknown_attributes_are_refused(things: SpecRegistry[Thing]) -> None:
    with pytest.raises(TypeError, match="colour"):
        things.register("red", colour="red")(lambda: 1)
    assert [*things] == ["small"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("smal", "did you mean small? must be one of small, large"),
        ("huge", "must be one of small, large"),
    ],
)
def test_an_unknown_name_is_one_line(name: str, reason: str, things: SpecRegistry[Thing]) -> None:
    things.register(Thing(name="large", work=lambda: 2))
    with pytest.raises(FlagError) as caught:
        things.find(name)
    assert str(caught.value) == f"--thing={name}: {reason}"


def test_an_object_goes_from_all_tables() -> None:
    further: dict[str, int] = {}
    numbers: Registry[str, object] = Registry("number", flag="number", further=[further])
    one, two = object(), object()
    for name, value in (("one", one), ("two", two)):
        numbers.add(name, value)
        further[f"the {name}"] = value
    numbers.remove("one")
    assert (numbers, further) == ({"two": two}, {"the two": two})
    numbers.remove("three")
    assert (numbers, further) == ({"two": two}, {"the two": two})


def test_a_name_is_shown_as_its_registry_wants() -> None:
    pairs: Registry[tuple[str, str], int] = Registry("pair", flag="pair")
    pairs.add(("a", "b"), 1, "b of a")
    with pytest.raises(UsageError, match="pair b of a is registered already"):
        pairs.add(("a", "b"), 2, "b of a")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a package, whose modules a registry imports."""
    folder = tmp_path / "own_things"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "own_things"]:
        del sys.modules[name]


def test_own_objects_are_registered_by_modules(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers: Registry[str, int] = Registry("number", flag="number", own="own_things")
    monkeypatch.setattr("builtins.numbers", numbers, raising=False)
    # A module may call `load_own` while it is imported.
    for number, name in enumerate(("b", "a")):
        text = f"numbers.load_own()\nnumbers.add({name!r}, {number})"
        (package / f"{name}.py").write_text(text)
    assert not numbers
    assert numbers.find("b") == 0
    assert [*numbers] == ["a", "b"]
    numbers.load_own()
    assert [*numbers] == ["a", "b"]


def test_a_module_that_fails_is_imported_again(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers: Registry[str, int] = Registry("number", flag="number", own="own_things")
    monkeypatch.setattr("builtins.numbers", numbers, raising=False)
    (package / "a.py").write_text("numbers.add('a', 1 / 0)")
    with pytest.raises(ZeroDivisionError):
        numbers.load_own()
    (package / "a.py").write_text("numbers.add('a', 'as of now, of another length')")
    numbers.load_own()
    assert [*numbers] == ["a"]
    missing: Registry[str, int] = Registry("number", flag="number", own="own_things")
    monkeypatch.setattr(sys.modules["own_things"], "__path__", [str(package / "gone")])
    with pytest.raises(BenchmarkError, match="gone: cannot be read"):
        missing.load_own()


PROVIDER = """
import builtins
@builtins.things.register("installed")
def work():
    return 7
"""


def test_packages_are_loaded_for_unknown_names_only(
    things: SpecRegistry[Thing], install: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.things", things, raising=False)
    install(GROUP, PROVIDER)
    things.find("small")
    assert [*things] == ["small"]
    assert things.find("installed").work() == 7
    origin = plugins.plugin_of_object("thing", "installed")
    assert origin == f"entry point probe = cnnbench_provider of group {GROUP}"
    assert plugins.plugin_of_object("thing", "small") is None


def test_objects_of_a_package_that_fails_are_removed(
    things: SpecRegistry[Thing], install: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.things", things, raising=False)
    install(GROUP, f"{PROVIDER}1 / 0\n")
    with pytest.raises(UsageError, match=r"cnnbench_provider\.py:6: .*ZeroDivisionError"):
        things.find("installed")
    assert [*things] == ["small"]


def test_kinds_without_packages_have_none() -> None:
    alone: Registry[str, int] = Registry("number", flag="number")
    alone.load_packages()
    with pytest.raises(FlagError, match="--number=1: must be one of"):
        alone.find("1")
